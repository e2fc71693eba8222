"""Execute the commands of composesim that break something inside a node."""
