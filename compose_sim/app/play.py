"""How does a scenario become a report? A run with a player in it, judged by what the scenario expects once nothing runs any more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from compose_sim.app.run import Listener, run_cluster
from compose_sim.core.host.host import Host
from compose_sim.core.plan.model import Plan
from compose_sim.core.scenarios.expectations import Course
from compose_sim.core.scenarios.expectations.table import conclude, judge_scenario
from compose_sim.core.scenarios.player import ScenarioPlayer
from compose_sim.core.scenarios.scenario import Scenario
from compose_sim.engine.protocol import Engine
from compose_sim.engine.run_folder.folder import RunFolder
from compose_sim.errors import ComposesimError


def play_cluster(
    scenario: Scenario,
    plan: Plan,
    engine: Engine,
    folder: RunFolder,
    host: Host,
    listener: Listener,
    *,
    name: str,
    seed: int,
    dotenv: str = "",
    replan: Callable[[], Plan] | None = None,
) -> dict[str, Any]:
    """
    Play a scenario in a run; the report of the run with `scenario`, `expectations`, and the verdict that follows from these.

    Raises SpecError where a step makes no sense for the plan, and what `run_cluster` raises.
    """
    player = ScenarioPlayer(scenario, plan, seed=seed)
    report = run_cluster(plan, engine, folder, host, listener, dotenv=dotenv, replan=replan, player=player)
    left = None if plan.keep else what_is_left(engine, plan.run)
    played = player.played()
    course = Course(events=tuple(player.events), report=report, left=left)
    concluded = conclude(report, judge_scenario(scenario, course, played))
    concluded["scenario"] = {
        "name": name,
        "seed": seed,
        "steps": [{"step": step.number, "times": step.times, "refused": step.refused} for step in played],
        "run_verdict": report["verdict"],
        "run_exit_code": report["exit_code"],
    }
    folder.write_report(concluded)
    return concluded


def what_is_left(engine: Engine, run: str) -> tuple[str, ...] | None:
    """Names of the nodes, and of the network, that a run has left; None where the engine does not answer."""
    try:
        nodes = tuple(status.node for status in engine.statuses(run))
        return nodes or (("its network",) if run in engine.remaining_runs() else ())
    except ComposesimError:
        return None
