"""Decide how a run ended, and why."""
