"""What does a person see while a run goes on? One merged log, and on a terminal a status line for each node below it."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import click

from compose_sim.app.listener import Listener, QuietListener
from compose_sim.cli.console import is_terminal, node_prefix, say
from compose_sim.cli.views.faults import event_line, waiting_line
from compose_sim.cli.views.service_links import links_of, service_words
from compose_sim.core.events.events import Event
from compose_sim.core.plan.model import Plan
from compose_sim.core.state.node_phase import phase_of
from compose_sim.core.state.state import ClusterState, NodeState, initial_state
from compose_sim.core.units import format_bytes, format_seconds
from compose_sim.engine.run_folder.folder import RunFolder

if TYPE_CHECKING:
    from rich.table import Table

_MOST_STATUS_LINES = 12
_PHASE_COLOURS = {
    "running": "green", "ended": "green", "exited": "dim", "lost": "red", "killed": "red", "creating": "dim", "absent": "dim",
}  # fmt: skip


class DetachedListener(QuietListener):
    """Says once that the nodes have started, then lets the terminal go."""

    def __init__(self, announce: Callable[[], None]) -> None:
        self._announce: Callable[[], None] | None = announce

    def show(self, events: list[Event], state: ClusterState) -> None:
        """The first call comes when every node has been started."""
        if self._announce:
            self._announce()
            self._announce = None


class PlainListener:
    """The merged log on stdout, milestones as plain lines on stderr: for files, pipes and CI."""

    def __init__(self, plan: Plan, folder: RunFolder | None = None) -> None:
        self._run, self._folder = plan.run, folder
        # What is stopped as soon as it is diagnosed needs no announcement.
        limit = plan.hang_timeout_s
        self._hang_limit = f"; stopped if that lasts {format_seconds(limit)}" if limit and limit > plan.stall_s else ""
        self._many = {node.name for node in plan.nodes if node.nproc > 1}
        self._width = max(len(name) for name in _speakers(plan)) + (3 if self._many else 0)
        self._told: set[str] = set()

    def progress(self, text: str) -> None:
        """The line as it is."""
        say(text)

    def show(self, events: list[Event], state: ClusterState) -> None:
        """Log lines in one write; each milestone once. The first call comes when every node has been started: now links open."""
        for line in links_of(self._folder) if self._folder else ():
            self.progress(line)
        self._folder = None
        lines = [self._log_line(event) for event in events if event.kind == "log"]
        if lines:
            self.write("\n".join(lines) + "\n")
        for event in events:
            if event.kind == "breakpoint" and event.data.get("phase") == "waiting":
                where = f"{event.data.get('file')}:{event.data.get('line')}"
                join = f"composesim attach --run {self._run} --rank {event.rank}"
                self.progress(f"rank {event.rank} waits at {where}; join it: {join}")
            if event.kind == "service":
                self.progress(service_words(event))
            if event.kind == "hang":
                self._tell(f"hang at {event.t}", self._hang(event))
            if words := event_line(event, state):
                self.progress(words)
        if waiting := waiting_line(state):
            self._tell(f"waiting in {state.generation}: {waiting}", waiting)
        self.milestones(state)

    def write(self, text: str) -> None:
        """Ranks' output; a reader that has gone (`| head`) does not end the run."""
        try:
            click.echo(text, nl=False)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            self._tell("stdout", "nobody reads our output any more; the run goes on")

    def milestones(self, state: ClusterState) -> None:
        """What the cluster as a whole has reached."""
        start = state.started_at or 0.0
        if state.rendezvous_at and not state.driver:
            self._tell("rendezvous", f"all nodes have met after {format_seconds(state.rendezvous_at - start)}")
        if state.driver and state.driver.ready_at:
            told = f"; {state.driver.facts['words']}" if state.driver.facts.get("words") else ""
            self._tell("ready", f"the cluster is ready after {format_seconds(state.driver.ready_at - start)}{told}")
        if state.first_step_at:
            self._tell("first step", f"first step after {format_seconds(state.first_step_at - start)}")
        for failure in state.failures if not state.stopping else ():
            message = failure.message.splitlines()[0]
            spoken = message.startswith(("rank", "node", "the driver"))
            self._tell(f"{failure.place} {failure.generation}", message if spoken else f"{failure.place}: {message}")

    def _hang(self, event: Event) -> str:
        return f"hang: {event.data.get('message')}{self._hang_limit}"

    def _tell(self, key: str, text: str) -> None:
        if key not in self._told:
            self._told.add(key)
            self.progress(text)

    def _log_line(self, event: Event) -> str:
        node = event.node or ""
        return node_prefix(node, event.rank if node in self._many else None, self._width) + str(event.data["line"])


class LiveListener(PlainListener):
    """The merged log with a status line a node below it, redrawn in place."""

    def __init__(self, plan: Plan, folder: RunFolder | None = None) -> None:
        from rich.console import Console
        from rich.live import Live

        super().__init__(plan, folder)
        self._console = Console(stderr=True, highlight=False)
        # One terminal shows both streams: what goes above the status must pass through its console.
        self._shares_screen = sys.stdout.isatty()
        status = _status(initial_state(plan))
        self._live = Live(status, console=self._console, refresh_per_second=8, transient=True)
        self._live.start()

    def progress(self, text: str) -> None:
        """A line above the status."""
        self._console.print(text, style="dim", markup=False, soft_wrap=True)  # a link stays whole

    def write(self, text: str) -> None:
        """Ranks' output, above the status where both are on one screen."""
        if self._shares_screen:
            from rich.text import Text

            self._console.print(Text.from_ansi(text.rstrip("\n")), soft_wrap=True)
        else:
            super().write(text)

    def show(self, events: list[Event], state: ClusterState) -> None:
        """The new lines, then the status as it is now."""
        super().show(events, state)
        self._live.update(_status(state))

    def milestones(self, state: ClusterState) -> None:
        """The status lines tell them."""

    def close(self) -> None:
        """Take the status off the screen."""
        self._live.stop()


def _speakers(plan: Plan) -> list[str]:
    """Whose lines there are."""
    return [*(node.name for node in plan.nodes), *(["driver"] if plan.is_driven else [])]


@contextmanager
def listening(plan: Plan, *, quiet: bool, folder: RunFolder | None = None) -> Iterator[Listener]:
    """Yield the listener that suits our output. `folder` holds the token that links are shown with."""
    if quiet or not is_terminal():
        yield QuietListener() if quiet else PlainListener(plan, folder)
        return
    with closing(LiveListener(plan, folder)) as listener:
        yield listener


def _status(state: ClusterState) -> Table:
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    nodes = list(state.nodes.values())
    for node in nodes[:_MOST_STATUS_LINES]:
        table.add_row(*_cells(node, state))
    if len(nodes) > _MOST_STATUS_LINES:
        rest = nodes[_MOST_STATUS_LINES:]
        phases = Counter(phase_of(state, node.name) for node in rest)
        table.add_row(f"and {len(rest)} more", ", ".join(f"{count} {phase}" for phase, count in phases.items()))
    return table


def _cells(node: NodeState, state: ClusterState) -> list[str]:
    ranks = [rank for rank in state.ranks.values() if rank.node == node.name]
    step = max((rank.step or 0 for rank in ranks), default=0)
    loss = next((rank.metric["loss"] for rank in ranks if isinstance(rank.metric.get("loss"), int | float)), None)
    usage, phase = node.usage, phase_of(state, node.name)
    colour = _PHASE_COLOURS.get(phase, "yellow")
    return [
        f"[bold]{node.name}[/]",
        f"[{colour}]{phase}[/]",
        f"step {step}" if step else "",
        f"loss {loss:.4g}" if loss is not None else "",
        f"{usage.cpus:.1f} CPU" if usage and usage.cpus is not None else "",
        format_bytes(usage.memory_bytes) if usage else "",
        f"↓{format_bytes(usage.received_bytes)} ↑{format_bytes(usage.sent_bytes or 0)}"
        if usage and usage.received_bytes
        else "",
    ]
