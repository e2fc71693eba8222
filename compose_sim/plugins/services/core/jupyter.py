"""Run JupyterLab in the nodes' image, on their files, with the run's token."""

from __future__ import annotations

from collections.abc import Mapping

from compose_sim.core.plan.model import NODES, TOKEN, PlannedPort, PlannedService
from compose_sim.core.plan.recipes import Framework
from compose_sim.core.plan.services import ServiceContext

VALUE = ""
PACKAGES: Mapping[str, str] = {"jupyterlab": "4.0"}
# If these two are installed, jsonschema imports them, and Ray imports jsonschema: 1.4 s of CPU in each process of Ray.
FRAMEWORKS = (Framework(name="jupyter", module="jupyterlab", unwanted=("rfc3987-syntax", "lark")),)
NEEDS: tuple[str, ...] = ()
PORT = 8888


def containers(context: ServiceContext) -> tuple[PlannedService, ...]:
    """Return one container, with the nodes' access to the user's files and to the run's shared storage."""
    return (
        PlannedService(
            name="jupyter",
            command=(
                *context.role("command", context.python, "-m", "jupyterlab", "--no-browser", "--allow-root"),
                *("--ServerApp.ip=0.0.0.0", f"--ServerApp.port={PORT}", "--ServerApp.port_retries=0"),
                f"--ServerApp.root_dir={context.working_directory}",
            ),
            environment={"JUPYTER_TOKEN_FILE": f"{context.folder}/{TOKEN}"},
            mounts=(
                *context.sees("secrets", "node", "journal", NODES),
                *context.sees("shared", writable=True),
                *context.node_mounts,
            ),
            ports=(PlannedPort(name="jupyter", port=PORT, path="/lab?token={token}"),),
            packages=tuple(PACKAGES),
        ),
    )
