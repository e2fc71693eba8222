"""Slurm: `--engine slurm` runs the nodes of a run as one job of a cluster."""

ENTRY_POINTS = {
    "composesim.engines": {"slurm": "compose_sim.plugins.slurm.engine.engine:SlurmEngine"},
    "composesim.clusters": {"slurm": "compose_sim.plugins.slurm.core.cluster"},
    "composesim.options": {"slurm": "compose_sim.plugins.slurm.core.options:SlurmOptions"},
    "composesim.roles": {
        "slurm-job": "compose_sim.plugins.slurm.node.job",
        "slurm-task": "compose_sim.plugins.slurm.node.task",
    },
}
SUMMARIES = {"slurm": "on a cluster"}
PROGRAMS = {"slurm": "squeue"}
