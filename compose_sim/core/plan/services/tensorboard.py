"""How does TensorBoard run beside the nodes? In their image, behind a gate of ours that asks for the token: it has none itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from compose_sim.core.plan.model import PlannedPort, PlannedService
from compose_sim.core.plan.services import Setting

PACKAGES: Mapping[str, str] = {"tensorboard": "2.10"}
NEEDS: tuple[str, ...] = ()
PORT = 6006
_BEHIND = 6007
_FOLDER = "runs"  # where torch's SummaryWriter writes when it is told nothing


def containers(setting: Setting) -> tuple[PlannedService, ...]:
    """One, that reads the run's shared storage and a folder of the project."""
    folder = setting.value or _FOLDER
    own = folder if folder.startswith("/") else f"{setting.working_directory}/{folder}"
    # `name:folder,name:folder` is how it takes several; the part before the colon is shown before each run.
    folders = f"shared:{setting.folder}/shared,project:{own}"
    board = (setting.python, "-m", "tensorboard.main", "--host", "127.0.0.1", "--port", str(_BEHIND))
    return (
        PlannedService(
            name="tensorboard",
            command=(
                *setting.role("auth-proxy", "--listen", str(PORT), "--upstream", str(_BEHIND), "--"),
                *(*board, "--logdir_spec", folders, "--reload_interval", "5"),
            ),
            mounts=(
                *setting.sees("secrets", "node", "shared"),
                *(replace(mount, read_only=True) for mount in setting.of_nodes),
            ),
            ports=(PlannedPort(name="tensorboard", port=PORT, path="/?token={token}"),),
            packages=tuple(PACKAGES),
        ),
    )
