"""Run a script, interrupt it, and start it again."""
