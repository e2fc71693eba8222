"""Define what every engine can do, whether nodes are containers or plain processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from compose_sim.core.faults.kind import Action
    from compose_sim.core.plan.model import Plan
    from compose_sim.engine.run_folder.folder import RunFolder

Progress = Callable[[str], None]  # takes one line about a slow step


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatus:
    """One node, or the master, as the engine sees it now."""

    run: str
    node: str
    role: str  # "node" or "master"; "service" in `Engine.exits`
    running: bool
    exit_code: int | None = None
    oom_killed: bool = False
    paused: bool = False
    ranks: str = ""
    folder: str = ""  # the run's folder on this machine
    since: str = ""  # when it started, in the format of the engine
    handle: str = ""  # container id or process id


class Engine(Protocol):
    """Executes a Plan. Runs are found by labels, never by a record of our own, so every command works from any shell."""

    name: str

    def describe(self) -> str:
        """Return the engine's name and version in a few words."""

    def prepare(self, plan: Plan, progress: Progress) -> str:
        """Make sure that the images exist; return the tag to run. Raise EnvironmentMissingError if one is not available."""

    def image_digest(self, image: str) -> str:
        """Return what identifies the content of an image; "" if there is no such image."""

    def start(self, plan: Plan, folder: RunFolder) -> None:
        """Start the master and the nodes that the run begins with; return once all of them have been started."""

    def exits(self, plan: Plan) -> Iterator[NodeStatus]:
        """
        Yield each node, and the master, when it exits; block in between, and end once none is running.

        If this engine object restarts a node, the next exit of the node is yielded too.
        """

    def perform(self, plan: Plan, folder: RunFolder, act: Action) -> None:
        """
        Perform an act on a node and return when it is done: Signal, Pause, Start (even of a node that never ran) or LimitCpus.

        Pausing a paused node, resuming a running one and starting a running one change nothing. Raise EngineError if the act fails.
        """

    def addresses(self, plan: Plan) -> Mapping[str, str]:
        """Return the IPv4 address of each running node and the master, by name; empty if nodes have no separate addresses."""

    def statuses(self, run: str | None = None) -> tuple[NodeStatus, ...]:
        """Return the nodes of one run, or of all runs of this engine."""

    def stop(self, run: str, *, grace_s: float) -> None:
        """Ask every node to exit, and kill those that have not after `grace_s` seconds."""

    def remove(self, run: str) -> None:
        """Remove all nodes, networks and volumes of a run, if there are any. The run's folder stays."""

    def execute(self, run: str, node: str, argv: Sequence[str], write: Callable[[str], None] | None = None) -> int:
        """Run a command inside a node and return the exit status. It gets this terminal, or `write` gets each line of output."""

    def output(self, run: str, node: str, *, lines: int = 20) -> str:
        """Return the last lines that a node's first process printed, for a node that exited before it could log."""

    def remaining_runs(self) -> Mapping[str, str]:
        """Return the folder of each run that still has a node or a network, by name; "" if the folder is unknown."""

    def forget_absent_runs(self, over: str = "") -> None:
        """Remove what runs without nodes and networks have left on this machine, unless they may be about to begin; `over` is not."""

    def problem(self) -> str:
        """Return why the engine does not respond, with a command to type next; "" if it does."""
