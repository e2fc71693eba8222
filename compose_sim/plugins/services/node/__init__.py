"""Processes of services that run in the nodes' image: the authenticating proxy, metrics."""
