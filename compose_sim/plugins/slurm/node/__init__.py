"""Run the nodes of a run inside a Slurm job."""
