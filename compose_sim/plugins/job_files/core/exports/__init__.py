"""Write a spec as a job of a cluster: Slurm, Kubernetes operators, Docker Swarm, SkyPilot or torchrun."""
