"""Record the first steps of a script, and replay them at world size 1."""
