"""Inspect this machine: Python, GPUs, ports, installed recipes."""
