"""Decide whether a resumed run is the same run."""
