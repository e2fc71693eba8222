"""Build the report of a run, and its other formats."""
