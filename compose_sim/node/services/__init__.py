"""Processes that run beside the nodes: the authenticating proxy, metrics."""
