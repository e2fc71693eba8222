"""Run `templates/bench/gpu.py` on this machine's GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from compose_sim import assets
from compose_sim.app.builtin_run import run_builtin
from compose_sim.app.session import Session
from compose_sim.core.host.gpus import Inventory
from compose_sim.core.plan.gpus.request import eligible_gpus, require_gpus
from compose_sim.core.report.report import Report
from compose_sim.core.request.spec import ClusterSpec
from compose_sim.engine.host.gpus import inspect_gpus
from compose_sim.engine.run_folder.node_files import files_of_nodes

_TIMEOUT_S = 300.0


def require_inventory(asked: str) -> Inventory:
    """Return the GPUs that `auto` would use; raise EnvironmentMissingError if there is none."""
    inventory = inspect_gpus()
    require_gpus(inventory, asked)
    return replace(inventory, gpus=eligible_gpus(inventory)[0])


def run_on_gpus(name: str, inventory: Inventory, spec: Mapping[str, Any]) -> tuple[Session, Report]:
    """Run the script on these GPUs with these values of the spec."""
    script = str(assets.root() / "templates" / "bench" / "gpu.py")
    gpus = [gpu.uuid for gpu in inventory.gpus]  # by name, so that nothing is emulated if they are not available
    values = {"gpus": gpus, "script": script, "timeout": _TIMEOUT_S, "env": {"NCCL_DEBUG": "INFO"}, **spec}
    return run_builtin(name, ClusterSpec.model_validate(values))


def lines_of_ranks(session: Session) -> Iterator[str]:
    """Yield what all ranks printed, including the lines of NCCL."""
    files = session.folder.files
    for name in files_of_nodes(files, "logs", ".log"):
        yield from files.read_text(name).splitlines()
