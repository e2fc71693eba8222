"""A skill for coding agents: `composesim skill` writes SKILL.md, which says when to check a script and how to read the answer."""

ENTRY_POINTS = {"composesim.commands": {"skill": "compose_sim.plugins.skill.cli.command:command"}}
SUMMARIES = {"skill": "Write a SKILL.md that teaches a coding agent to check parallel code."}
AFTER = {"skill": "init"}
