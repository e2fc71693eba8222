"""Run TensorBoard in the nodes' image, behind an authenticating proxy, as it has no authentication."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from compose_sim.core.plan.model import PlannedPort, PlannedService
from compose_sim.core.plan.recipes import Framework
from compose_sim.core.plan.services import ServiceContext

VALUE = "a folder of event files"
PACKAGES: Mapping[str, str] = {"tensorboard": "2.10"}
FRAMEWORKS = (Framework(name="tensorboard", module="tensorboard"),)
NEEDS: tuple[str, ...] = ()
PORT = 6006
_BEHIND = 6007


def containers(context: ServiceContext) -> tuple[PlannedService, ...]:
    """Return one container, which reads the run's shared storage and a folder of the project."""
    folder = context.value or "runs"  # the default of torch's SummaryWriter
    own = folder if folder.startswith("/") else f"{context.working_directory}/{folder}"
    # Several folders are `name:folder,name:folder`; TensorBoard puts the name in front of each run.
    folders = f"shared:{context.folder}/shared,project:{own}"
    board = (context.python, "-m", "tensorboard.main", "--host", "127.0.0.1", "--port", str(_BEHIND))
    return (
        PlannedService(
            name="tensorboard",
            command=(
                *context.role("auth-proxy", "--listen", str(PORT), "--upstream", str(_BEHIND), "--"),
                *(*board, "--logdir_spec", folders, "--reload_interval", "5"),
            ),
            mounts=(
                *context.sees("secrets", "node", "shared"),
                *(replace(mount, read_only=True) for mount in context.node_mounts),
            ),
            ports=(PlannedPort(name="tensorboard", port=PORT, path="/?token={token}"),),
            packages=tuple(PACKAGES),
        ),
    )
