"""Test the reliability of runs: the soak behind bench/reliability.md, `make soak MINUTES=10 SEED=1`."""
