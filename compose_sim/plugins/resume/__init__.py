"""Resuming: `composesim check --resume` judges whether a run that was interrupted and started again is the same run."""

ENTRY_POINTS = {
    "composesim.observers": {"resume": "compose_sim.plugins.resume.node.observer"},
    "composesim.check_options": {"resume": "compose_sim.plugins.resume.core.options:ResumeOptions"},
    "composesim.expectations": {"state_continuous": "compose_sim.plugins.resume.app.expectation"},
    "composesim.check_modes": {"resume": "compose_sim.plugins.resume.app.check:check"},
}
SUMMARIES = {"resume": "Resuming"}
