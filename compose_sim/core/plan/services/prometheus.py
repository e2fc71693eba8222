"""How does Prometheus run beside the nodes? From its own image, behind a gate of ours that asks for the token, with our exporter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from compose_sim.core.plan.model import PlannedPort, PlannedService
from compose_sim.core.plan.services import FILES, Setting

PACKAGES: Mapping[str, str] = {}
NEEDS: tuple[str, ...] = ()
IMAGE = "prom/prometheus:v3.5.0"  # a release with long support
PORT = 9090
BEHIND = 9091  # where Prometheus itself listens, on the loopback that it shares with the gate and nobody else
EXPORTER = 9100
_FILE = "prometheus/prometheus.yml"


def containers(setting: Setting) -> tuple[PlannedService, ...]:
    """The gate with the exporter, in the nodes' image; and Prometheus, which lives in that one's network."""
    exporter = setting.role("metrics-exporter", "--listen", str(EXPORTER))
    configuration = f"{setting.folder}/{FILES}/{_FILE}"
    return (
        PlannedService(
            name="prometheus",
            command=(
                *setting.role("auth-proxy", "--listen", str(PORT), "--upstream", str(BEHIND)),
                *("--", *exporter),
            ),
            mounts=(
                *setting.sees("secrets", "node", "events", "logs"),
                *(replace(mount, read_only=True) for mount in setting.of_nodes),
            ),
            ports=(PlannedPort(name="prometheus", port=PORT, path="/?token={token}"),),
        ),
        PlannedService(
            name="prometheus-server",
            image=setting.value or IMAGE,
            command=(
                f"--config.file={configuration}",
                f"--web.listen-address=127.0.0.1:{BEHIND}",
                "--storage.tsdb.path=/tmp/prometheus",
                "--log.level=warn",
            ),
            mounts=setting.sees(f"{FILES}/prometheus", *(("secrets",) if setting.has_token else ())),
            files={_FILE: "templates/prometheus/prometheus.yml.j2"},
            network_of="prometheus",
        ),
    )
