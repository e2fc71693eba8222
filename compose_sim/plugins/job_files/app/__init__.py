"""Jobs of clusters: written from a request, and read as one."""
