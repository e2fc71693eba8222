"""Describe the machine that a plan is made for."""
