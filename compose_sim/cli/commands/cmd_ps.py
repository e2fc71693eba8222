"""List the runs on this machine and their nodes, as the engines report them."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Any

import click

from compose_sim.cli.console import echo, print_json, print_table, say
from compose_sim.cli.run_lookup import find_statuses, json_option
from compose_sim.cli.views.service_links import links_of, published_by
from compose_sim.core.state.node_phase import wished
from compose_sim.engine.lifetime.orphans import state_of
from compose_sim.engine.protocol import NodeStatus
from compose_sim.engine.run_folder.folder import RunFolder
from compose_sim.engine.run_folder.record import finished_runs, read_state, verdict_of
from compose_sim.errors import SpecError


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
    rows = [row for run in runs for row in _rows(run)]
    columns = 6 if any(run["nodes"] for run in runs) else 3
    print_table(("run", "engine", "state", "node", "ranks", "node state")[:columns], [row[:columns] for row in rows])
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
        away = [_away(name, phase) for name, phase in phases.items() if name not in there]
        runs.append(
            {
                "run": run,
                "engine": engines[0].name,
                "state": run_state,
                "folder": folder,
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


def _away(name: str, phase: str) -> dict[str, Any]:
    """Return the row of a node that the engine does not know."""
    return {"node": name, "role": "node", "ranks": "", "state": phase, "exit_code": None, "since": ""}


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
        "published": [],
        "nodes": [],
    }


def _rows(run: dict[str, Any]) -> list[tuple[str, ...]]:
    named = (run["run"], run["engine"], run["state"])
    rows = [(node["node"], node["ranks"], node["state"]) for node in run["nodes"]] or [("", "", "")]
    return [(*(named if index == 0 else ("", "", "")), *row) for index, row in enumerate(rows)]
