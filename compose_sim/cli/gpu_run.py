"""How is `templates/bench/gpu.py` run on this machine's GPUs? As any script, by `up`'s own corridor, without its words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from compose_sim import assets
from compose_sim.cli.live import QuietListener
from compose_sim.cli.options import Request, new_name
from compose_sim.core.gpus.inventory import Inventory
from compose_sim.core.gpus.request import eligible_gpus, require_gpus
from compose_sim.core.plan import Plan
from compose_sim.core.spec import ClusterSpec
from compose_sim.engine.engines import make_engine
from compose_sim.engine.gpus import inspect_gpus
from compose_sim.engine.rundir import RunFolder, runs_folder
from compose_sim.run import run_cluster

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
    asked = ClusterSpec.model_validate(values)
    request = Request(spec=asked, folder=Path.cwd(), dotenv="", dotenv_variables={}, env_files={})
    run = new_name(asked.model_copy(update={"script": name}))
    folder = RunFolder(runs_folder(request.folder) / run)
    plan, host = request.plan(run=run, run_folder=folder.path)
    report = run_cluster(plan, make_engine(plan.engine), folder, host, QuietListener())
    return plan, report, folder


def lines_of_ranks(folder: RunFolder) -> Iterator[str]:
    """What all ranks printed, NCCL's own words among it."""
    for path in sorted((folder.path / "logs").glob("*.log")):
        with path.open(errors="replace") as file:
            yield from file
