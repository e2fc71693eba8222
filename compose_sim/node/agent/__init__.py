"""The agent: one process per node that starts and watches the ranks."""
