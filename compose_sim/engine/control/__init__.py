"""Inject, heal and scale, in the process that runs the cluster."""
