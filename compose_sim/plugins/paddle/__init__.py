"""PaddlePaddle: the recipe `paddle` runs Paddle's launcher on every node, and `paddle-ray` uses Paddle in a Ray cluster."""

ENTRY_POINTS = {
    "composesim.recipes": {
        "paddle": "compose_sim.plugins.paddle.core",
        "paddle-ray": "compose_sim.plugins.paddle.core.paddle_ray",
    },
    "composesim.observers": {"paddle": "compose_sim.plugins.paddle.node.observer"},
    "composesim.roles": {
        "paddle-driver": "compose_sim.plugins.paddle.node.driver",
        "paddle-launch": "compose_sim.plugins.paddle.node.launch",
    },
}
NEEDS = {"paddle-ray": "ray"}
