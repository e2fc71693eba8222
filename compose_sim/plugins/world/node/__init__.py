"""Run a script as ranks of a large world, inside a node."""
