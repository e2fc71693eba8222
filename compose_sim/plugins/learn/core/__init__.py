"""Lessons on distributed training: the format of a course, the judgment of an attempt, and the pictures drawn from a run."""
