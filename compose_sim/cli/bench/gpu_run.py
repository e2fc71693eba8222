"""Which GPUs does `templates/bench/gpu.py` run on, and what did its ranks print?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from compose_sim import assets
from compose_sim.app.builtin_run import run_own
from compose_sim.core.host.gpus import Inventory
from compose_sim.core.plan.gpus.request import eligible_gpus, require_gpus
from compose_sim.core.plan.model import Plan
from compose_sim.core.request.spec import ClusterSpec
from compose_sim.engine.host.gpus import inspect_gpus
from compose_sim.engine.run_folder.folder import RunFolder

_TIMEOUT_S = 300.0


def require_inventory(asked: str) -> Inventory:
    """This machine's GPUs, those that `auto` would take; EnvironmentMissingError where there is none to be asked."""
    inventory = inspect_gpus()
    require_gpus(inventory, asked)
    return replace(inventory, gpus=eligible_gpus(inventory)[0])


def run_on_gpus(name: str, inventory: Inventory, spec: Mapping[str, Any]) -> tuple[Plan, dict[str, Any], RunFolder]:
    """Run it on these GPUs, with these values of the spec; the plan, the report, and the run's folder."""
    script = str(assets.root() / "templates" / "bench" / "gpu.py")
    gpus = [gpu.uuid for gpu in inventory.gpus]  # by name, so that nothing is emulated where they cannot be had
    values = {"gpus": gpus, "script": script, "timeout": _TIMEOUT_S, "env": {"NCCL_DEBUG": "INFO"}, **spec}
    return run_own(name, ClusterSpec.model_validate(values))


def lines_of_ranks(folder: RunFolder) -> Iterator[str]:
    """What all ranks printed, NCCL's own words among it."""
    for path in sorted((folder.path / "logs").glob("*.log")):
        with path.open(errors="replace") as file:
            yield from file
