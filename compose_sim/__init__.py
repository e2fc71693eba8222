"""composesim: one machine, simulated as an N-node training cluster."""

__version__ = "0.1.0"
