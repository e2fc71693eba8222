"""Start the ranks of a node for the agent, each launcher in a separate process."""
