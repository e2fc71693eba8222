"""How does a script become a list of checks? A recorded run at world size N, its steps once more on one rank, then the judges."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from compose_sim.core.checks import run_checks
from compose_sim.core.inventory import Host
from compose_sim.core.plan import Plan
from compose_sim.engine.evidence import read_case
from compose_sim.engine.protocol import Engine
from compose_sim.engine.rundir import RunFolder
from compose_sim.run import Listener, run_cluster


class Planner(Protocol):
    """Makes a plan of the same request for this machine as it is now, with `changes` to fields of its ClusterSpec."""

    def __call__(
        self, *, run: str, run_folder: Path, changes: Mapping[str, Any] | None = None
    ) -> tuple[Plan, Host]: ...


def check_cluster(
    plan: Plan,
    engine: Engine,
    folder: RunFolder,
    host: Host,
    listener: Listener,
    *,
    make_plan: Planner,
    only: tuple[str, ...] = (),
    skip: tuple[str, ...] = (),
    steps: int | None = None,
    tolerance: float | None = None,
    dotenv: str = "",
    replan: Callable[[], Plan] | None = None,
) -> dict[str, Any]:
    """
    Run a plan, replay its first steps at world size 1 where a chosen check asks for it, and return the report with all chosen checks.

    `plan` and `replan` are as for `run_cluster`; `make_plan` (Request.plan) plans the second run.
    `steps` ends the script after so many optimizer steps; a `tolerance` that is left out is what the numbers' precision allows.
    """
    report = run_cluster(plan, engine, folder, host, listener, dotenv=dotenv, replan=replan)
    case = read_case(folder.path, verdict=report["verdict"], cause=report["cause"])
    if tolerance is not None:
        case = replace(case, tolerance=tolerance)
    results = run_checks(case, only=only, skip=skip)
    return {**report, "checks": [result.to_dict() for result in results]}
