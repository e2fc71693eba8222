"""What the page of a run shows, and the trace of it: folds over events, records and the report."""
