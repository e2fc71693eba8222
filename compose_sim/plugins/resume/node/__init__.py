"""What the ranks of a run that is to be resumed record, and how they are interrupted."""
