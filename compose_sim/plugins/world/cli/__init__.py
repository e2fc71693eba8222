"""Show a large world on the command line."""
