"""Start the head and the members of a Ray cluster."""
