"""Plan a Ray cluster."""
