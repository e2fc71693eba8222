"""Define what a fault does to a run: actions on nodes, changes of the network, and how both are reverted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from compose_sim.core.faults.commands import Fault
from compose_sim.core.network.node_network import NetworkFault

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

    Both are computed when the fault is injected, so that it can be healed whatever has happened to the run in the meantime.
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
