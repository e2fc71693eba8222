"""Run Grafana with composesim's dashboard; the run's token is the password of the administrator."""

from __future__ import annotations

from collections.abc import Mapping

from compose_sim.core.plan.model import TOKEN, PlannedPort, PlannedService
from compose_sim.core.plan.services import FILES, ServiceContext
from compose_sim.plugins.services.core import TEMPLATES

VALUE = "an image"
PACKAGES: Mapping[str, str] = {}
NEEDS = ("prometheus",)
IMAGE = "grafana/grafana:12.0.2@sha256:b5b59bfc7561634c2d7b136c4543d702ebcc94a3da477f21ff26f89ffd4214fa"
PORT = 3000
_DATA = "/tmp"  # exists, and any user can write to it


def containers(context: ServiceContext) -> tuple[PlannedService, ...]:
    """Return one container, which reaches Prometheus on a shared loopback."""
    provisioning = f"{context.folder}/{FILES}/grafana"
    return (
        PlannedService(
            name="grafana",
            image=context.value or IMAGE,
            environment={
                "GF_ANALYTICS_CHECK_FOR_PLUGIN_UPDATES": "false",
                "GF_ANALYTICS_CHECK_FOR_UPDATES": "false",
                "GF_ANALYTICS_REPORTING_ENABLED": "false",
                "GF_AUTH_ANONYMOUS_ENABLED": "false",
                "GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH": f"{provisioning}/dashboards/composesim.json",
                "GF_PATHS_DATA": _DATA,
                "GF_PATHS_LOGS": f"{_DATA}/log",
                "GF_PATHS_PLUGINS": f"{_DATA}/plugins",
                "GF_PATHS_PROVISIONING": provisioning,
                "GF_PLUGINS_PREINSTALL_DISABLED": "true",  # they would be downloaded
                "GF_SECURITY_ADMIN_PASSWORD__FILE": f"{context.folder}/{TOKEN}",
                "GF_SERVER_HTTP_PORT": str(PORT),
                "GF_USERS_ALLOW_SIGN_UP": "false",
            },
            mounts=context.sees(f"{FILES}/grafana", "secrets"),
            files={
                "grafana/datasources/composesim.yaml": f"{TEMPLATES}/grafana/datasource.yml.j2",
                "grafana/dashboards/composesim.yaml": f"{TEMPLATES}/grafana/dashboards.yml.j2",
                "grafana/dashboards/composesim.json": f"{TEMPLATES}/grafana/dashboard.json",
            },
            ports=(PlannedPort(name="grafana", port=PORT, path="/d/composesim", login="user admin, password {token}"),),
            network_of="prometheus",
        ),
    )
