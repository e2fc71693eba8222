"""Decide what a large world would look like, from what some of its ranks did."""
