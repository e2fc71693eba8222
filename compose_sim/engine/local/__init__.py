"""Run nodes as plain processes of this machine."""
