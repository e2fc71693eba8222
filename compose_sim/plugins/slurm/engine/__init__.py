"""Run nodes on a Slurm cluster, one job per run."""
