"""Measure GPUs and links for `composesim bench` and `composesim doctor --gpu`."""
