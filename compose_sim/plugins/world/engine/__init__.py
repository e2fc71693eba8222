"""Start the process that runs the ranks, and read what it found."""
