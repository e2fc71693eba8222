"""Judge whether a machine can run clusters."""
