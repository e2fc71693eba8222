"""Build the report of a run, and convert it to other formats."""
