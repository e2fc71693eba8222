"""Estimate what a script needs before it runs on a cluster."""
