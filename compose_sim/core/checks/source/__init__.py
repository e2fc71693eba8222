"""Read the source of a script, as its syntax tree."""
