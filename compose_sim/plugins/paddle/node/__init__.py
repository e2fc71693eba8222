"""Start Paddle through its own launcher."""
