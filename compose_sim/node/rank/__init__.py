"""What surrounds the script in a rank."""
