"""The command `composesim export`."""
