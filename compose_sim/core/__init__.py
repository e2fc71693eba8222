"""Make every decision of composesim, as pure functions of values.

Nothing here reads a file, starts a program, opens a socket, reads the clock or prints. Facts about the world are arguments;
what is to be done is a return value. tests/test_architecture.py enforces this.
"""
