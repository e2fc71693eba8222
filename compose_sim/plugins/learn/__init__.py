"""Lessons: `composesim learn` runs the scripts of a course as attempts, judges them, and grades a class."""

ENTRY_POINTS = {"composesim.commands": {"learn": "compose_sim.plugins.learn.cli.command:command"}}
SUMMARIES = {"learn": "Learn distributed training in graded lessons."}
AFTER = {"learn": "init"}
