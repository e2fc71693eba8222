"""Start the head and the nodes of a Ray cluster."""
