"""Show what `up` would run, without starting anything."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from compose_sim.app.request import program_of
from compose_sim.app.session import Session
from compose_sim.cli.cluster_command import ClusterCommand
from compose_sim.cli.console import echo, print_json, print_table, say, show
from compose_sim.cli.options import cluster_options, request_from_flags
from compose_sim.core.plan.environment import masked
from compose_sim.core.plan.limits import memory_lines, memory_of_nodes
from compose_sim.core.plan.model import FIRST_NODE, Plan, PlannedNode
from compose_sim.core.text import format_bytes
from compose_sim.engine.host.memory_estimate import estimate_memory
from compose_sim.plugins.registry import built_in

if TYPE_CHECKING:
    from compose_sim.core.request.job_files import JobFile

_LONGEST_KEY = 48
# Of plug-ins: `options`, `is_wanted(**values)`, and `show(request, as_json=…, **values)`, which returns the exit code.
_VIEWS = [feature.load() for feature in built_in("composesim.plans").values()]


def _with_options_of_views(command: click.Command) -> click.Command:
    at = len(command.params) - 1  # before --json
    command.params[at:at] = [option for view in _VIEWS for option in view.options]
    return command


@_with_options_of_views
@click.command("plan", cls=ClusterCommand)
@cluster_options
@click.option("--peak-memory", is_flag=True, help="Estimate the peak memory of a rank: runs two steps without data.")
@click.option("--json", "as_json", is_flag=True, help="Print the whole plan as JSON.")
def command(file: Path | None, program: tuple[str, ...], peak_memory: bool, as_json: bool, **flags: Any) -> None:
    """Show the nodes, ranks and choices of `up` with the same arguments."""
    given = [(view, {option.name: flags.pop(option.name) for option in view.options}) for view in _VIEWS]
    request = request_from_flags(file=file, program=program, **flags)
    for view, values in given:
        if view.is_wanted(**values):
            sys.exit(view.show(request, as_json=as_json, **values))
    session = Session(request)
    plan = session.plan
    rank = estimate_memory(plan, program_of(request)) if peak_memory else None
    nodes = memory_of_nodes(plan, rank, machine_bytes=session.host.memory_bytes) if rank else ()
    if as_json:
        job: dict[str, Any] = {}
        if found := request.job_file:
            notes = [asdict(note) for note in found.notes]
            job["job_file"] = {"file": found.source, "kind": found.kind, "notes": notes}
        need = {"memory": {"rank": asdict(rank), "nodes": [asdict(each) for each in nodes]}} if rank else {}
        print_json({"schema_version": 1, **masked(plan), **job, **need})
    else:
        _print(plan)
        for line in memory_lines(rank, nodes) if rank else ():
            echo(line)
        if request.job_file:
            _print_job(request.job_file)
        for remark in request.remarks:
            say(remark)
    if not all(each.fits for each in nodes):
        sys.exit(1)


def _print(plan: Plan) -> None:
    for choice in plan.choices:
        show(f"{choice.what:<9} {choice.value} ({choice.why})", hang=10)
    show(f"{'program':<9} {plan.program}")
    echo(f"{'launcher':<9} {plan.launcher}")
    echo(
        f"{'master':<9} {plan.master.name.replace(FIRST_NODE, 'the first node')}:{plan.master.store_port or 'any free port'}"
    )
    if plan.subnet:
        echo(f"{'network':<9} {plan.subnet}")
    for link in plan.links:
        echo(f"{'link':<9} {link}")
    for port in plan.published:
        echo(f"{'opens':<9} {port.name} on 127.0.0.1:{port.host_port}")
    echo()
    on_gpus = any(node.gpus for node in plan.nodes)
    rows = [
        (
            node.name,
            ", ".join(map(str, node.ranks)),
            f"{node.cpus:g}" if node.cpus else "all",
            _size(node.memory_bytes or plan.default_memory_bytes),
            *((_gpus(node),) if on_gpus else ()),
        )
        for node in plan.nodes
    ]
    print_table(("node", "ranks", "cpus", "memory", *(("gpus",) if on_gpus else ())), rows)


def _print_job(job: JobFile) -> None:
    """Print what became of every value of a job file."""
    echo()
    echo(f"{job.source} ({job.kind}):")
    rows = [(note.verdict, str(note.line), _end_of(note.key), note.text) for note in job.notes]
    print_table(("", "line", "key", "here"), rows)


def _end_of(key: str) -> str:
    """Return the last parts of a long key."""
    return key if len(key) <= _LONGEST_KEY else f"…{key[-_LONGEST_KEY:].partition('.')[2]}"


def _size(limit: int | None) -> str:
    return format_bytes(limit) if limit else "all"


def _gpus(node: PlannedNode) -> str:
    """Return the start of each UUID, which `--gpus` also accepts."""
    return ", ".join(uuid[:12] for uuid in node.gpus.uuids) if node.gpus and node.gpus.uuids else "none"
