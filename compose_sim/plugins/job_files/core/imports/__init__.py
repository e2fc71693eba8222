"""Read jobs of a cluster as specs: Slurm scripts, objects of Kubernetes operators, Docker stacks and SkyPilot tasks."""
