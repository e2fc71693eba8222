"""How does Grafana run beside the nodes? From its own image, with our dashboard, and the token as the administrator's password."""

from __future__ import annotations

from collections.abc import Mapping

from compose_sim.core.plan.model import TOKEN, PlannedPort, PlannedService
from compose_sim.core.plan.services import FILES, Setting

PACKAGES: Mapping[str, str] = {}
NEEDS = ("prometheus",)
IMAGE = "grafana/grafana:12.0.2"
PORT = 3000
_DATA = "/tmp"  # there from the start, and writable to whichever user


def containers(setting: Setting) -> tuple[PlannedService, ...]:
    """One, in the network of Prometheus, which it asks on the loopback that they share."""
    provisioning = f"{setting.folder}/{FILES}/grafana"
    return (
        PlannedService(
            name="grafana",
            image=setting.value or IMAGE,
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
                "GF_PLUGINS_PREINSTALL_DISABLED": "true",  # they would come from the Internet
                "GF_SECURITY_ADMIN_PASSWORD__FILE": f"{setting.folder}/{TOKEN}",
                "GF_SERVER_HTTP_PORT": str(PORT),
                "GF_USERS_ALLOW_SIGN_UP": "false",
            },
            mounts=setting.sees(f"{FILES}/grafana", "secrets"),
            files={
                "grafana/datasources/composesim.yaml": "templates/grafana/datasource.yml.j2",
                "grafana/dashboards/composesim.yaml": "templates/grafana/dashboards.yml.j2",
                "grafana/dashboards/composesim.json": "templates/grafana/dashboard.json",
            },
            ports=(PlannedPort(name="grafana", port=PORT, path="/d/composesim", login="user admin, password {token}"),),
            network_of="prometheus",
        ),
    )
