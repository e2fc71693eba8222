"""Start ranks: by forking, by torchrun, or by executing a command."""
