"""Define a kind of fault: its arguments, requirements and effect on nodes and network, and how the effect is reverted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from compose_sim.core.faults.commands import Fault
from compose_sim.core.network.node_network import NetworkFault
from compose_sim.core.plan.model import Plan
from compose_sim.errors import SpecError
from compose_sim.plugins.registry import ENGINES, built_in

if TYPE_CHECKING:
    from compose_sim.node.shared.fault_note import CommandName


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """Send a signal (`KILL`, `TERM`, `STOP`, `CONT`) to a node: KILL and TERM to the node, STOP and CONT to all processes in it."""

    node: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """Freeze all processes of a node with the kernel's freezer, which they cannot notice, or thaw them if `on` is False."""

    node: str
    on: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Start a node that has ended. Does nothing if the node is running."""

    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitCpus:
    """Limit the CPUs of a node; None restores the limit of the plan."""

    node: str
    cpus: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentCommand:
    """Have the node's agent execute a command of `node/agent/faults`, or undo it if `on` is False."""

    node: str
    name: CommandName
    values: Mapping[str, Any] = field(default_factory=dict)
    on: bool = True


Action = Signal | Pause | Start | LimitCpus | AgentCommand


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """
    What a fault does to a run, and how that is reverted.

    Both are computed when the fault is injected, so that it can be healed even if the run has changed in the meantime.
    """

    fault: Fault
    text: str  # as in the report and the live view: "node-1 killed"
    apply: tuple[Action, ...] = ()
    revert: tuple[Action, ...] = ()
    network: NetworkFault | None = None  # in force until the fault is healed
    loses: tuple[str, ...] = ()  # the fault explains the loss of these nodes, and the end of ranks on them

    @property
    def lasts(self) -> bool:
        """Whether there is anything to heal; if not, the fault is instantaneous."""
        return bool(self.revert or self.network)


_ARGUMENTS = {"nodes": "NODE…", "rank": "RANK", "groups": "NODE,… NODE,…", "none": ""}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSnapshot:
    """The run at the moment at which a fault is injected."""

    plan: Plan
    running: tuple[str, ...]  # names of the nodes that are running
    ranks: Mapping[int, str] = field(default_factory=dict)  # rank -> node in the current round


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultOption:
    """An option of a kind. The key in `Fault.options` is the flag with underscores: `one_way` is `--one-way`."""

    help: str
    metavar: str = ""  # "" for a flag
    parse: Callable[[str], Any] = bool  # raises ValueError for an invalid text
    default: Any = ...  # `...` if the option is required


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultKind:
    """One kind of fault. A new one is an entry in a module of `core/faults/kinds`, a row in `docs/fault-kinds.md` and a test."""

    name: str
    summary: str  # the line of `composesim fault list`
    effect: Callable[[Fault, RunSnapshot], Effect]  # raises SpecError if the fault makes no sense for this run
    target: Literal["nodes", "rank", "groups", "none"] = "nodes"  # "groups" become `nodes` and the option `groups`
    engines: tuple[str, ...] = ("docker", "local", *built_in(ENGINES))
    needs: str = ""  # a capability of the host: "tc", "netfilter", …; engine/lifetime/doctor_facts.py tests for it
    options: Mapping[str, FaultOption] = field(default_factory=dict)
    lasts: bool = True  # False if it is instantaneous, so that there is nothing to heal

    @property
    def arguments(self) -> str:
        """The positional arguments, as the usage line shows them."""
        return _ARGUMENTS[self.target]

    @property
    def usage(self) -> str:
        """Arguments and options, as `composesim fault list` and error messages show them."""
        words = [self.arguments] if self.arguments else []
        for key, option in self.options.items():
            flag = f"{flag_of(key)} {option.metavar}".strip()
            words.append(flag if option.default is ... else f"[{flag}]")
        return " ".join(words)


def flag_of(key: str) -> str:
    """Return the flag of an option: `--one-way` for `one_way`."""
    return f"--{key.replace('_', '-')}"


def require_running(nodes: Sequence[str], run: RunSnapshot) -> None:
    """Raise SpecError for the first of these nodes that is not running."""
    for node in nodes:
        if node not in run.running:
            raise SpecError(
                f"{node} of the run '{run.plan.run}' is not running",
                evidence=f"running: {', '.join(run.running) or 'no node'}",
                hint=f"composesim ps --run {run.plan.run}",
            )
