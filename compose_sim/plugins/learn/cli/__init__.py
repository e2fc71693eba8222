"""The command `composesim learn`: its verbs, the watch of a script, and what they print."""
