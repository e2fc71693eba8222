"""Play a scenario: inject the faults into a run, and judge the expectations once the run is over."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from compose_sim import assets
from compose_sim.app.listener import Listener
from compose_sim.app.session import Session
from compose_sim.core.report.report import Report, ScenarioReport, ScenarioStepReport
from compose_sim.core.scenarios.expectations import FinishedRun
from compose_sim.core.scenarios.expectations.table import conclude, judge_scenario
from compose_sim.core.scenarios.player import ScenarioPlayer
from compose_sim.core.scenarios.scenario import EXPECTATIONS, OF_PLUG_INS, Scenario, parse_scenario
from compose_sim.core.text import did_you_mean
from compose_sim.engine.project_files import read_settings
from compose_sim.engine.protocol import Engine
from compose_sim.errors import ComposesimError, SpecError
from compose_sim.plugins.registry import built_in


def play(session: Session, scenario: Scenario, listener: Listener, *, name: str, seed: int) -> Report:
    """
    Run a session with a scenario, and return the report with the judged expectations and the verdict that follows from them.

    Raises SpecError if a step makes no sense for the plan.
    """
    player = ScenarioPlayer(scenario, session.plan, seed=seed)
    others = {each: _of_plug_in(each.name) for each in scenario.expect if each.name in OF_PLUG_INS}
    for module in others.values():
        session.add_environment(**module.RECORDS)
    with session.running(listener, player=player):
        report = session.report
        left = None if session.plan.keep else _what_is_left(session.engine, session.name)
        played = player.outcomes()
        run = FinishedRun(events=tuple(player.events), report=report, left=left)
        found = {each.name: getattr(module, each.name)(each.wanted, session) for each, module in others.items()}
        results = judge_scenario(scenario, run, played, found)
        steps = (ScenarioStepReport(step=each.number, times=each.times, refused=each.refused) for each in played)
        of_scenario = ScenarioReport(
            name=name, seed=seed, steps=tuple(steps), run_verdict=report.verdict, run_exit_code=report.exit_code
        )
        session.report = replace(conclude(report, results), scenario=of_scenario)
    return session.report


def _of_plug_in(name: str) -> Any:
    """Return the module that judges an expectation."""
    feature = built_in(EXPECTATIONS).get(name)
    if feature is None:
        raise SpecError(f"nothing judges the expectation '{name}'", hint="remove it, or install the plug-in that does")
    return feature.load()


def read_scenario(name: str) -> Scenario:
    """Return the scenario in a file, or one that ships; raise SpecError with the nearest name if there is neither."""
    path, folder = Path(name), Path.cwd()
    if not path.is_file():
        known = {shipped.stem: shipped for shipped in shipped_scenarios()}
        if name not in known:
            suggestion = did_you_mean(path.stem, known)
            raise SpecError(
                f"there is no scenario '{name}', neither as a file nor built in{suggestion}",
                hint="composesim play --list",
            )
        path = known[name]
        folder = path.parent
    return parse_scenario(read_settings(path, folder), name, os.environ)


def shipped_scenarios() -> list[Path]:
    """Return the files of the scenarios that ship."""
    found = (path for folder in assets.templates() for path in folder.glob("scenarios/*.yaml"))
    return sorted(found, key=lambda path: path.name)


def _what_is_left(engine: Engine, run: str) -> tuple[str, ...] | None:
    """Return the names of nodes, or of the network, that are left of a run; None if the engine does not answer."""
    try:
        nodes = tuple(status.node for status in engine.statuses(run))
        return nodes or (("its network",) if run in engine.remaining_runs() else ())
    except ComposesimError:
        return None
