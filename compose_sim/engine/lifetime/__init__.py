"""Supervise runs, and clean up after them."""
