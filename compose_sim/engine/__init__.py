"""The only folder that touches the world: it decides nothing, and prints nothing."""
