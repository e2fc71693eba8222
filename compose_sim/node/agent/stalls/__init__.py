"""Detect ranks that make no progress, and dump their stacks."""
