"""Turn a request and a host into a plan: nodes, commands, GPUs, ports and services."""
