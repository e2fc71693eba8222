"""Assign GPUs to nodes, decide how ranks share them, and bind them to containers, from an inventory alone."""
