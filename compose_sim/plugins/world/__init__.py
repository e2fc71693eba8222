"""Large worlds: `composesim plan --world 1024` runs a script as some of its ranks, with tensors and groups that hold no data."""

ENTRY_POINTS = {
    "composesim.plans": {"world": "compose_sim.plugins.world.cli.view:VIEW"},
    "composesim.roles": {"world-ranks": "compose_sim.plugins.world.node.ranks"},
}
