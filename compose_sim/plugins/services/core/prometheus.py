"""Run Prometheus behind an authenticating proxy, with composesim's exporter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from compose_sim.core.plan.model import NODES, PlannedPort, PlannedService
from compose_sim.core.plan.services import FILES, ServiceContext
from compose_sim.plugins.services.core import TEMPLATES

VALUE = "an image"
PACKAGES: Mapping[str, str] = {}
NEEDS: tuple[str, ...] = ()
# A release with long-term support.
IMAGE = "prom/prometheus:v3.5.0@sha256:63805ebb8d2b3920190daf1cb14a60871b16fd38bed42b857a3182bc621f4996"
PORT = 9090
BEHIND = 9091  # Prometheus itself, on the loopback that it shares with the proxy only
EXPORTER = 9100
_FILE = "prometheus/prometheus.yml"


def containers(context: ServiceContext) -> tuple[PlannedService, ...]:
    """Return the proxy with the exporter, in the nodes' image, and Prometheus, in the network of the proxy."""
    exporter = context.role("metrics-exporter", "--listen", str(EXPORTER))
    return (
        PlannedService(
            name="prometheus",
            command=context.role("auth-proxy", "--listen", str(PORT), "--upstream", str(BEHIND), "--", *exporter),
            mounts=(
                *context.sees("secrets", "node", "journal", NODES),
                *(replace(mount, read_only=True) for mount in context.node_mounts),
            ),
            ports=(PlannedPort(name="prometheus", port=PORT, path="/?token={token}"),),
        ),
        PlannedService(
            name="prometheus-server",
            image=context.value or IMAGE,
            command=(
                f"--config.file={context.folder}/{FILES}/{_FILE}",
                f"--web.listen-address=127.0.0.1:{BEHIND}",
                "--storage.tsdb.path=/tmp/prometheus",
                "--log.level=warn",
            ),
            mounts=context.sees(f"{FILES}/prometheus", *(("secrets",) if context.has_token else ())),
            files={_FILE: f"{TEMPLATES}/prometheus/prometheus.yml.j2"},
            network_of="prometheus",
        ),
    )
