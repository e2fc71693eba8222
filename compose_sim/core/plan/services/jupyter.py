"""How does JupyterLab run beside the nodes? In their image, on their files, with the run's token."""

from __future__ import annotations

from collections.abc import Mapping

from compose_sim.core.plan.model import TOKEN, PlannedPort, PlannedService
from compose_sim.core.plan.services import Setting

PACKAGES: Mapping[str, str] = {"jupyterlab": "4.0"}
NEEDS: tuple[str, ...] = ()
PORT = 8888


def containers(setting: Setting) -> tuple[PlannedService, ...]:
    """One, that may do to the person's files and to the run's shared storage what nodes may do."""
    as_root = ("--allow-root",) if setting.user.startswith("0:") else ()  # it asks, where the nodes' user is root
    return (
        PlannedService(
            name="jupyter",
            command=(
                *(setting.python, "-m", "jupyterlab", "--no-browser", *as_root),
                *("--ServerApp.ip=0.0.0.0", f"--ServerApp.port={PORT}", "--ServerApp.port_retries=0"),
                f"--ServerApp.root_dir={setting.working_directory}",
            ),
            environment={"JUPYTER_TOKEN_FILE": f"{setting.folder}/{TOKEN}"},
            mounts=(
                *setting.sees("secrets", "events", "logs"),
                *setting.sees("shared", writable=True),
                *setting.of_nodes,
            ),
            ports=(PlannedPort(name="jupyter", port=PORT, path="/lab?token={token}"),),
            packages=tuple(PACKAGES),
        ),
    )
