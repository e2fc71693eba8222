"""Decide what the network of each node looks like, and render the script that shapes it."""
