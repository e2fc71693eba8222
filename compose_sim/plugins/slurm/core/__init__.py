"""Plan a Slurm job, and judge how it ended."""
