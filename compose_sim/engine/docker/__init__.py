"""Run nodes as containers, with the docker command."""
