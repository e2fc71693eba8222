"""Fold events into the state of a cluster."""
