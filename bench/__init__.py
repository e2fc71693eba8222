"""Benchmark composesim against the alternatives: `make bench`, or `python -m bench --help`."""
