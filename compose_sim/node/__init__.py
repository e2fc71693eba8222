"""The code that runs inside nodes: the master, the agents and the ranks of a run.

It runs in the user's image on Python 3.9 or newer, and imports only the standard library, and torch 2.4 or newer if the
script uses it. A run's folder holds a copy of these files; `__main__.py` starts each process.
"""
