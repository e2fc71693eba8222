"""Show a run while it is going: one merged log, and on a terminal a status line for each node below it.

Modules that describe events are imported only when there are some, so that nodes need not wait for the import.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

from compose_sim.app.listener import Listener, QuietListener
from compose_sim.cli.console import echo, is_terminal, line_of_node, say, wrapped
from compose_sim.cli.views.report import links_of, service_line
from compose_sim.cli.views.tracebacks import UncaughtTracebacks
from compose_sim.cli.views.waiting import Waiting
from compose_sim.core.events.events import printable
from compose_sim.core.plan.model import DRIVER, Plan
from compose_sim.core.text import format_bytes, format_seconds
from compose_sim.engine.run_folder.folder import RunFolder

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

    from compose_sim.core.events.events import Event
    from compose_sim.core.state.state import ClusterState, NodeState

_MAX_STATUS_LINES = 12
_ABOUT_TORCH = ("torch ", "composesim with torch ")  # how notes begin that say what ranks cannot do with their torch
_PHASE_COLORS = {
    "running": "green", "ended": "green", "exited": "dim", "lost": "red", "killed": "red", "creating": "dim", "absent": "dim",
}  # fmt: skip


class DetachedListener(QuietListener):
    """Announces once that the nodes have started, and then releases the terminal."""

    def __init__(self, announce: Callable[[], None]) -> None:
        self._announce: Callable[[], None] | None = announce

    def show(self, events: list[Event], state: ClusterState) -> None:
        """Announce the start: the first call comes when every node has been started."""
        if self._announce:
            self._announce()
            self._announce = None


class PlainListener:
    """Prints the merged log on stdout and milestones as plain lines on stderr: for files, pipes and CI."""

    def __init__(self, plan: Plan, folder: RunFolder | None = None) -> None:
        self._plan, self._folder, self._is_command = plan, folder, plan.launcher == "command"
        self._goes_on = plan.max_restarts > 0 or plan.elastic is not None or plan.is_driven
        self._many = {node.name for node in plan.nodes if node.nproc > 1}
        self._width = max(len(name) for name in _labels(plan)) + (3 if self._many else 0)
        self._printed: set[str] = set()
        self._waiting = Waiting()

    def progress(self, text: str) -> None:
        """Print the line."""
        say(text)

    def waiting(self, what: str) -> None:
        """Say it if it takes long."""
        if not self._waiting.what:  # a run begins: `check` starts a second one if the first fails with emulated GPUs
            self._waiting.end()
            self._waiting = Waiting()
            self._waiting.tell(say)
        self._waiting.what = what

    def close(self) -> None:
        """Say nothing more."""
        self._waiting.end()

    def show(self, events: list[Event], state: ClusterState) -> None:
        """Print log lines in one write, and each milestone once. From the first call on, all nodes have been started and links work."""
        from compose_sim.cli.views.faults import event_line, waiting_line
        from compose_sim.core.state.progress import awaited

        for line in links_of(self._folder) if self._folder else ():
            self.progress(line)
        self._folder = None
        self.milestones(state)  # they are no later than the lines: logs are read before events
        lines = [self._log_line(event) for event in self.output([each for each in events if each.kind == "log"], state)]
        self._waiting.what = "" if lines or not self._waiting.what else awaited(state, is_command=self._is_command)
        if lines:
            self.write("\n".join(lines) + "\n")
        for event in events:
            if event.kind == "service":
                self.progress(service_line(event))
            if event.kind == "hang":
                self._print_once(f"hang at {event.t}", _hang_line(event, self._plan))
            if words := event_line(event, state):
                self.progress(words)
        if waiting := waiting_line(state):
            self._print_once(f"waiting in {state.generation}: {waiting}", waiting)
        for note in state.notes:
            if note.startswith(_ABOUT_TORCH):  # others are for the report
                self._print_once(note, note)
        self.failures(state)

    def output(self, lines: list[Event], state: ClusterState) -> Iterable[Event]:
        """Return what is printed of the lines that ranks have printed: here all."""
        return lines

    def write(self, text: str) -> None:
        """Print output of ranks. If the reader has gone (`| head`), the run continues."""
        try:
            echo(text, nl=False)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            self._print_once("stdout", "stdout was closed; the run continues")

    def milestones(self, state: ClusterState) -> None:
        """Print what the cluster as a whole has reached."""
        start = state.started_at or 0.0
        if state.rendezvous_at and not state.driver:
            self._print_once("rendezvous", f"rendezvous complete after {format_seconds(state.rendezvous_at - start)}")
        if state.driver and state.driver.ready_at:
            details = f"; {state.driver.facts['words']}" if state.driver.facts.get("words") else ""
            self._print_once(
                "ready", f"the cluster is ready after {format_seconds(state.driver.ready_at - start)}{details}"
            )
        if state.first_step_at:
            self._print_once("first step", f"first step after {format_seconds(state.first_step_at - start)}")

    def failures(self, state: ClusterState) -> None:
        """Print each failure of a rank or a node, unless composesim caused it by stopping the run."""
        from compose_sim.core.state.fault_attribution import fault_of, is_excused

        for failure in state.failures if not state.stopping else ():
            if is_excused(state, failure) and not fault_of(state, failure):
                continue  # a node that `scale` removed was not lost
            message = failure.message.splitlines()[0]
            has_place = message.startswith(("rank", "node", "the driver"))
            words = message if has_place else f"{failure.place}: {message}"
            if not self._goes_on:  # the report will say why
                words = "a failure ends the run"
            self._print_once(f"{failure.place} {failure.generation}" if self._goes_on else "failed", words)

    def _print_once(self, key: str, text: str) -> None:
        if key not in self._printed:
            self._printed.add(key)
            self.progress(text)

    def _log_line(self, event: Event) -> str:
        node = event.node or ""
        return line_of_node(node, event.rank if node in self._many else None, self._width, str(event.data["line"]))


class LiveListener(PlainListener):
    """Prints the merged log, with one status line per node below it, redrawn in place."""

    def __init__(self, plan: Plan, folder: RunFolder | None = None) -> None:
        from rich.console import Console
        from rich.live import Live

        from compose_sim.core.state.state import initial_state

        super().__init__(plan, folder)
        self._console = Console(stderr=True, highlight=False)
        # If one terminal shows both streams, output above the status must go through the console of the status.
        self._shares_screen = sys.stdout.isatty()
        self._tracebacks = UncaughtTracebacks()
        self._status = _status(initial_state(plan))
        self._live = Live(get_renderable=self._shown, console=self._console, refresh_per_second=8, transient=True)
        self._live.start()

    def _shown(self) -> Group:
        from rich.console import Group
        from rich.text import Text

        return Group(self._status, Text(self._waiting.line(), style="dim", no_wrap=True, overflow="ellipsis"))

    def waiting(self, what: str) -> None:
        """Show it below the status."""
        self._waiting.what = what

    def progress(self, text: str) -> None:
        """Print a line above the status."""
        text = wrapped(printable(text), self._console.width)
        self._console.print(text, style="dim", markup=False, soft_wrap=True)  # keep links whole

    def output(self, lines: list[Event], state: ClusterState) -> Iterable[Event]:
        """Leave out the tracebacks that the report repeats; a run that restarts has no report of them."""
        return lines if self._goes_on or not self._shares_screen else self._tracebacks.without(lines, state)

    def write(self, text: str) -> None:
        """Print output of ranks, above the status if both are on one screen."""
        if self._shares_screen:
            from rich.text import Text

            self._console.print(Text.from_ansi(text.rstrip("\n")), soft_wrap=True)
        else:
            super().write(text)

    def show(self, events: list[Event], state: ClusterState) -> None:
        """Print the new lines, then the current status."""
        from compose_sim.core.state.progress import pace

        super().show(events, state)
        self._status, self._waiting.pace = _status(state), pace(state)

    def milestones(self, state: ClusterState) -> None:
        """Print nothing: the status lines show them."""

    def failures(self, state: ClusterState) -> None:
        """Print nothing, for the same reason."""

    def close(self) -> None:
        """Remove the status from the screen."""
        super().close()
        self._live.stop()


def _hang_line(event: Event, plan: Plan) -> str:
    """Return the diagnosis, and how long the run goes on; it is not told if that is no time."""
    limit = plan.hang_limit_s(is_final=bool(event.data.get("final")))
    lasts = f"; the run stops if this lasts {format_seconds(limit)}" if limit and limit > plan.stall_s else ""
    return f"hang: {event.data.get('message')}{lasts}"


def _labels(plan: Plan) -> list[str]:
    """Return the prefixes of log lines."""
    return [*(node.name for node in plan.nodes), *([DRIVER] if plan.is_driven else [])]


@contextmanager
def listening(plan: Plan, *, quiet: bool, folder: RunFolder | None = None) -> Iterator[Listener]:
    """Yield the listener that suits our output. `folder` holds the token that links are shown with."""
    if quiet:
        yield QuietListener()
        return
    with closing(LiveListener(plan, folder) if is_terminal() else PlainListener(plan, folder)) as listener:
        yield listener


def _status(state: ClusterState) -> Table:
    from rich.table import Table

    from compose_sim.core.state.progress import phase_of

    table = Table.grid(padding=(0, 2))
    nodes = list(state.nodes.values())
    for node in nodes[:_MAX_STATUS_LINES]:
        table.add_row(*_cells(node, state, phase_of(state, node.name)))
    if len(nodes) > _MAX_STATUS_LINES:
        rest = nodes[_MAX_STATUS_LINES:]
        phases = Counter(phase_of(state, node.name) for node in rest)
        table.add_row(f"and {len(rest)} more", ", ".join(f"{count} {phase}" for phase, count in phases.items()))
    return table


def _cells(node: NodeState, state: ClusterState, phase: str) -> list[str]:
    ranks = [rank for rank in state.ranks.values() if rank.node == node.name]
    step = max((rank.step or 0 for rank in ranks), default=0)
    loss = next((rank.metric["loss"] for rank in ranks if isinstance(rank.metric.get("loss"), int | float)), None)
    usage = node.usage
    color = _PHASE_COLORS.get(phase, "yellow")
    return [
        f"[bold]{node.name}[/]",
        f"[{color}]{phase}[/]",
        f"step {step}" if step else "",
        f"loss {loss:.4g}" if loss is not None else "",
        f"{usage.cpus:.1f} CPU" if usage and usage.cpus is not None else "",
        format_bytes(usage.memory_bytes) if usage else "",
        f"↓{format_bytes(usage.received_bytes)} ↑{format_bytes(usage.sent_bytes or 0)}"
        if usage and usage.received_bytes
        else "",
    ]
