"""Derive from observations what several checks judge."""
