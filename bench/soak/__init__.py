"""What does a run withstand? The soak behind bench/reliability.md: `make soak MINUTES=10 SEED=1`."""
