"""Follow a run, or read what a finished one has left: what its ranks print, what its nodes use, and how it ends."""

from __future__ import annotations

import sys
import time
from collections import defaultdict, deque
from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING

import click

from compose_sim.cli.console import echo, line_of_node, print_json, print_table, say, to_json_text
from compose_sim.cli.run_lookup import json_option, run_parameters, seconds, select_folder
from compose_sim.core.events.events import Event
from compose_sim.core.plan.model import Plan, chosen_ranks
from compose_sim.core.text import format_seconds
from compose_sim.engine.run_folder.event_tail import EventTail, poll_interval
from compose_sim.engine.run_folder.finished import end_of
from compose_sim.engine.run_folder.folder import RunFolder

if TYPE_CHECKING:
    from compose_sim.core.state.state import ClusterState


@click.command("logs")
@click.option("-f", "--follow", is_flag=True, help="Follow the output until the run ends.")
@click.option("--node", "nodes", multiple=True, metavar="N", help="Only this node: node-1, or 1 (repeatable).")
@click.option("--rank", "ranks", multiple=True, metavar="R", help="Only this rank (repeatable).")
@click.option("--tail", type=click.IntRange(min=0), metavar="N", help="Start with the last N lines of each rank.")
@run_parameters
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
def logs_command(
    follow: bool, nodes: tuple[str, ...], ranks: tuple[str, ...], tail: int | None, run: str | None, as_json: bool
) -> None:
    """Show the output of the ranks of a running or finished run."""
    folder = select_folder(run)
    plan = folder.read_plan()
    chosen = chosen_ranks(plan, nodes=nodes, ranks=ranks)
    # A rank may be on another node in each round.
    on, numbers = {node for node, _ in chosen}, {rank for _, rank in chosen}
    writer = _Writer(plan, as_json=as_json)
    follow = follow and folder.is_claimed()
    batches = _batches(folder, plan, follow=follow)
    for events in batches if tail is None else _tailed(batches, tail, follow=follow):
        writer.write(
            [event for event in events if (not nodes or event.node in on) and (not ranks or event.rank in numbers)]
        )


def _batches(folder: RunFolder, plan: Plan, *, follow: bool) -> Iterator[list[Event]]:
    """Yield batches of log events, empty when there is nothing new; with `follow`, until the run is over."""
    tail = EventTail(folder.path, plan, numbers=False)
    over = end_of(folder) if follow else None
    while True:
        looked = time.monotonic()
        is_over = over is None or over.is_set()
        events = tail.poll()
        yield _logs(events)
        if not events and is_over:
            break
        if not events and over:
            over.wait(poll_interval(looked))
    yield from map(_logs, tail.finish())
    tail.close()


def _tailed(batches: Iterator[list[Event]], tail: int, *, follow: bool) -> Iterator[list[Event]]:
    """Yield the batches, with the output that existed at the beginning cut to the last lines of each rank."""
    last: dict[int | None, deque[Event]] = defaultdict(lambda: deque(maxlen=tail))
    for events in batches:
        for event in events:
            last[event.rank].append(event)
        if not events and follow:
            break
    yield [event for events in last.values() for event in events]
    yield from batches


def _logs(events: list[Event]) -> list[Event]:
    return [event for event in events if event.kind == "log"]


class _Writer:
    """Writes log lines as `up` does."""

    def __init__(self, plan: Plan, *, as_json: bool) -> None:
        self._as_json = as_json
        self._several = {node.name for node in plan.nodes if node.nproc > 1}
        labels = (
            f"{node.name}.{rank}" if node.name in self._several else node.name
            for node in plan.nodes
            for rank in node.ranks
        )
        self._width = max(map(len, labels))

    def write(self, events: list[Event]) -> None:
        """Write all lines at once, so that lines of two writers never mix."""
        if events:
            echo("".join(map(self._line, events)), nl=False)

    def _line(self, event: Event) -> str:
        node, line = event.node or "", str(event.data["line"])
        if self._as_json:
            return to_json_text({"node": node, "rank": event.rank, "line": line}) + "\n"
        return line_of_node(node, event.rank if node in self._several else None, self._width, line) + "\n"


_BETWEEN_LOOKS_S = 1.0  # nodes measure once a second


@click.command("stats")
@run_parameters
@click.option("--watch", is_flag=True, help="Refresh every second until the run ends.")
@json_option
def stats_command(run: str | None, watch: bool, as_json: bool) -> None:
    """Show the CPU, memory, network and GPU usage of each node, now or at the end of a finished run."""
    folder = select_folder(run)
    if watch:
        _watch_usage(folder, as_json=as_json)
    else:
        from compose_sim.engine.run_folder.record import read_state

        _, state = read_state(folder, metrics=False)
        _print_usage(folder, state, as_json=as_json)


def _watch_usage(folder: RunFolder, *, as_json: bool) -> None:
    from compose_sim.core.state.fold import fold_events
    from compose_sim.core.state.state import initial_state

    plan = folder.read_plan()
    state, tail = initial_state(plan), EventTail(folder.path, plan, logs=False)
    over, last = end_of(folder), False
    while not last:
        last = over.wait(_BETWEEN_LOOKS_S) if state.last_t else over.is_set()
        state = fold_events(state, chain.from_iterable(tail.finish() if last else [tail.poll()]))
        if not as_json:
            click.clear()  # does nothing if stdout is not a terminal
        _print_usage(folder, state, as_json=as_json)
    tail.close()


def _print_usage(folder: RunFolder, state: ClusterState, *, as_json: bool) -> None:
    from compose_sim.core.report.make_report import usage_table, usage_values

    if as_json:
        print_json({"schema_version": 1, "run": folder.name, "t": state.last_t, "nodes": usage_values(state)})
    else:
        print_table(*usage_table(state))


TIMED_OUT = 124


@click.command("wait")
@run_parameters
@click.option(
    "--timeout", callback=seconds, metavar="TIME", help="Give up with exit code 124 after this time, such as 10m."
)
@json_option
def wait_command(run: str | None, timeout: float | None, as_json: bool) -> None:
    """Wait for a run to finish and exit with its exit code. Returns immediately if the run is already over."""
    folder = select_folder(run)
    if not end_of(folder).wait(timeout):
        say(f"the run '{folder.name}' is still running after {format_seconds(timeout or 0)}")
        sys.exit(TIMED_OUT)
    from compose_sim.cli.views.report import final_line
    from compose_sim.engine.run_folder.record import report_of

    report = report_of(folder)
    if as_json:
        print_json(report.to_dict())
    else:
        say(final_line(report))
    sys.exit(report.exit_code)
