"""What runs inside a node? The rendezvous master, the agent that starts and watches the ranks, and what surrounds a rank's script.

Runs in the person's image: Python >= 3.9, the standard library, and torch >= 2.4 where the script needs it. Imports nothing
else of compose_sim. A run's folder holds a copy of these files; `__main__.py` starts each process.
"""
