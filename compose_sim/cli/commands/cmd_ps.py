"""List the runs on this machine and their nodes, as the engines report them."""

from __future__ import annotations

import pwd
import time
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import Any

import click

from compose_sim.cli.console import echo, print_json, print_table, say
from compose_sim.cli.run_lookup import find_statuses, json_option
from compose_sim.cli.views.report import links_of, published_by
from compose_sim.core.state.progress import wished
from compose_sim.engine.host.answers import home_folder
from compose_sim.engine.lifetime.orphans import state_of
from compose_sim.engine.protocol import NodeStatus
from compose_sim.engine.run_folder.finished import finished_runs
from compose_sim.engine.run_folder.folder import RunFolder, began_at
from compose_sim.engine.run_folder.record import read_state, verdict_of
from compose_sim.errors import SpecError

_LONGEST_SCRIPT = 40


@click.command("ps")
@click.option(
    "--all", "-a", "all_runs", is_flag=True, help="Also list finished runs of this project, with their verdicts."
)
@json_option
def command(all_runs: bool, as_json: bool) -> None:
    """List the runs that have nodes on any engine, and their nodes."""
    runs = _live_runs()
    if all_runs:
        known = {run["run"] for run in runs}
        runs += [_finished(folder) for folder in finished_runs(Path.cwd()) if folder.name not in known]
    if as_json:
        print_json({"schema_version": 1, "runs": runs})
        return
    if not runs:
        say("no run is running" + ("" if all_runs else ". List finished runs: composesim ps --all"))
        return
    header = ("run", "engine", "state", "age", "owner", "script", "project")
    print_table(header, [(*(run[name] for name in header[:3]), *_facts_shown(run)) for run in runs])
    rows = [row for run in runs for row in _rows(run)]
    if rows:
        echo()
        print_table(("run", "node", "ranks", "state"), rows)
    for run in runs:
        lines = links_of(RunFolder(Path(run["folder"]))) if run["published"] else []
        if lines:
            echo("\n".join(["", f"{run['run']} publishes on this machine:", *lines]))


def _live_runs() -> list[dict[str, Any]]:
    found = sorted(find_statuses(), key=lambda pair: pair[1].run)
    runs = []
    for run, pairs in groupby(found, key=lambda pair: pair[1].run):
        engines, statuses = zip(*pairs, strict=True)
        folder = next((status.folder for status in statuses if status.folder), "")
        run_state = _run_state(Path(folder) if folder else None)
        phases = _wished(Path(folder)) if folder and run_state == "under way" else {}
        there = {status.node for status in statuses}
        unknown = {"role": "node", "ranks": "", "exit_code": None, "since": ""}  # the engine does not know these nodes
        away = [unknown | {"node": name, "state": phase} for name, phase in phases.items() if name not in there]
        runs.append(
            {
                "run": run,
                "engine": engines[0].name,
                "state": run_state,
                "folder": folder,
                **_facts(Path(folder) if folder else None),
                "published": published_by(RunFolder(Path(folder))) if folder else [],
                "nodes": [_node(status, phases.get(status.node, "")) for status in statuses] + away,
            }
        )
    return runs


def _run_state(path: Path | None) -> str:
    """Return the state of a run, with the verdict (`passed, kept`) if it was started with --keep."""
    state = state_of(path)
    if state != "kept" or path is None:
        return state
    try:
        report = RunFolder(path).read_report()
    except SpecError:
        return "unreadable"
    return f"{report.verdict}, kept" if report else "crashed"


def _wished(path: Path) -> dict[str, str]:
    """Return phases that come from a fault or from `scale`, which the engine does not know: stopped, isolated, absent."""
    try:
        _, state = read_state(RunFolder(path), metrics=False)
    except SpecError:
        return {}
    return wished(state)


def _node(status: NodeStatus, phase: str) -> dict[str, Any]:
    return {
        "node": status.node,
        "role": status.role,
        "ranks": status.ranks,
        "state": phase or _state(status),
        "exit_code": status.exit_code,
        "since": status.since,
    }


def _state(status: NodeStatus) -> str:
    if status.paused:
        return "paused"
    if status.running:
        return "running"
    if status.oom_killed:
        return "out of memory"
    return "created" if status.exit_code is None else f"exited {status.exit_code}"


def _finished(folder: RunFolder) -> dict[str, Any]:
    try:
        engine, verdict = verdict_of(folder)
    except SpecError:  # from another version, or half copied: still list the other runs
        engine, verdict = "", "unreadable"
    return {
        "run": folder.name,
        "engine": engine,
        "state": verdict,
        "folder": str(folder.path),
        **_facts(folder.path),
        "published": [],
        "nodes": [],
    }


def _rows(run: dict[str, Any]) -> list[tuple[str, ...]]:
    return [
        ("" if index else run["run"], node["node"], node["ranks"], node["state"])
        for index, node in enumerate(run["nodes"])
    ]


def _facts(path: Path | None) -> dict[str, Any]:
    """Return what a run's folder says about it; each fact is null if the folder is gone, or belongs to another user."""
    facts: dict[str, Any] = dict.fromkeys(("script", "project", "owner", "started_at"))
    if path is None:
        return facts
    folder = RunFolder(path)
    with suppress(OSError, KeyError, SpecError):
        facts["owner"] = pwd.getpwuid(path.stat().st_uid).pw_name
        plan = folder.read_plan()
        facts |= {"script": plan.program, "project": plan.working_directory}
    return {**facts, "started_at": began_at(folder.files)}


def _facts_shown(run: dict[str, Any]) -> tuple[str, ...]:
    script, project = run["script"] or "", run["project"] or ""
    short = script if len(script) <= _LONGEST_SCRIPT else script[: _LONGEST_SCRIPT - 1] + "…"
    home = home_folder("")
    age = "" if run["started_at"] is None else _age(time.time() - run["started_at"])
    return age, run["owner"] or "", short, f"~/{project.removeprefix(home)}" if project.startswith(home) else project


def _age(seconds: float) -> str:
    """Return `12 s`, `3 min`, `5 h` or `2 d`."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length or (seconds >= length and unit == "min"):
            return f"{seconds // length:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"
