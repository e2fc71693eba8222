"""Ray: the recipe `ray` starts a cluster, and the user's script drives it."""

ENTRY_POINTS = {
    "composesim.recipes": {"ray": "compose_sim.plugins.ray.core"},
    "composesim.roles": {
        "ray-driver": "compose_sim.plugins.ray.node.driver",
        "ray-member": "compose_sim.plugins.ray.node.member",
    },
}
