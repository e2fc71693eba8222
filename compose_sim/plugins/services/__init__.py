"""Services beside the nodes that `--with` starts: JupyterLab, TensorBoard, Prometheus and Grafana."""

ENTRY_POINTS = {
    "composesim.services": {  # in the order in which links are printed
        "jupyter": "compose_sim.plugins.services.core.jupyter",
        "tensorboard": "compose_sim.plugins.services.core.tensorboard",
        "prometheus": "compose_sim.plugins.services.core.prometheus",
        "grafana": "compose_sim.plugins.services.core.grafana",
    },
    "composesim.roles": {
        "auth-proxy": "compose_sim.plugins.services.node.auth_proxy",
        "metrics-exporter": "compose_sim.plugins.services.node.metrics_exporter",
    },
}
