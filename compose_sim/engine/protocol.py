"""What must an engine be able to do, whatever it executes nodes with?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from compose_sim.core.faults import Act
from compose_sim.core.plan.model import Plan
from compose_sim.engine.run_folder.folder import RunFolder

Progress = Callable[[str], None]  # takes one line that says what a slow step is doing


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatus:
    """One node as the engine sees it now; the master is one too (`role` "master")."""

    run: str
    node: str
    role: str  # "node" or "master"
    running: bool
    exit_code: int | None = None
    oom_killed: bool = False
    paused: bool = False
    ranks: str = ""
    folder: str = ""  # the run's folder on this machine
    since: str = ""  # when it started, in words of the engine
    handle: str = ""  # container id or process id


class Engine(Protocol):
    """Executes a Plan. Runs are found by their labels, never by a record of our own, so every verb works from any shell."""

    name: str

    def describe(self) -> str:
        """The engine and its version, in a few words."""
        ...

    def prepare(self, plan: Plan, progress: Progress) -> str:
        """See to it that the image is there; returns the tag to run. EnvironmentMissingError where it cannot be had."""
        ...

    def image_digest(self, image: str) -> str:
        """What identifies the image's content."""
        ...

    def start(self, plan: Plan, folder: RunFolder) -> None:
        """Start the master and the nodes that the run begins with; returns when every one has been started."""
        ...

    def stopped(self, plan: Plan) -> Iterator[NodeStatus]:
        """
        Each node, and the master, at the moment it stops running; blocks in between, ends when none runs any more.

        A node that this engine object starts again is told again.
        """
        ...

    def perform(self, plan: Plan, folder: RunFolder, act: Act) -> None:
        """
        Do this to its node, and return when it is done: Signal, Pause, Start (also of a node that never ran) or LimitCpus.

        Holding what is held, letting go what is not, and starting what runs change nothing. EngineError where it cannot be done.
        """
        ...

    def addresses(self, plan: Plan) -> Mapping[str, str]:
        """The IPv4 address of each node that runs, and of the master, by name; empty where nodes have none of their own."""
        ...

    def statuses(self, run: str | None = None) -> tuple[NodeStatus, ...]:
        """The nodes of one run, or of all runs of this engine."""
        ...

    def stop(self, run: str, *, grace_s: float) -> None:
        """Ask every node to end, and end those that have not after `grace_s` seconds."""
        ...

    def remove(self, run: str) -> None:
        """Leave nothing of the run but its folder: no node, network or volume. No error where there is nothing."""
        ...

    def execute(self, run: str, node: str, argv: Sequence[str]) -> int:
        """Run a command inside a node, on this terminal; returns its exit status."""
        ...

    def output(self, run: str, node: str, *, lines: int = 20) -> str:
        """The last lines that the node itself wrote, for a node that ended before it could log."""
        ...

    def runs_left(self) -> tuple[str, ...]:
        """Names of runs of which anything is left: nodes or networks."""
        ...
