"""The benchmark: composesim beside what else could do its work. `make bench`, or `python -m bench --help`."""
