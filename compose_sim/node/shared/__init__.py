"""Code that more than one kind of process inside a node uses."""
