"""Lessons on distributed training: the format of a course, the judgement of an attempt, and the pictures drawn from a run."""
