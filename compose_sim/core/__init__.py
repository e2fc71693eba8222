"""Values in, values out: every decision of composesim is made here.

Nothing in this folder reads a file, starts a program, opens a socket, asks the time or prints.
What it knows of the world arrives as an argument; what it wants done leaves as a value. A test keeps this law.
"""
