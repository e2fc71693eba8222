"""Supervise runs, and clean up after those that crashed."""
