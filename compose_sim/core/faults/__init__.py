"""What can be broken on purpose, and what does each fault mean? One pure file a kind; this module says what a kind is.

A kind lowers a Fault to acts: the few things that an engine can do to a node. The acts that undo it are made at the same moment, so
that a fault can be healed whatever happened to the run meanwhile. What it does to the
network is a value instead (`core/network/node_network.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Protocol, cast

from compose_sim.core.faults.commands import Fault
from compose_sim.core.network.node_network import NetworkFault
from compose_sim.core.plan.model import Plan
from compose_sim.errors import SpecError


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """Send a signal (`KILL`, `TERM`, `STOP`, `CONT`) to a node: KILL and TERM to the node, STOP and CONT to all its processes."""

    node: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """Hold all processes of a node by the kernel's freezer, which they cannot notice; `on` False lets them go on."""

    node: str
    on: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Start a node that has ended, as it was started first; nothing where it runs."""

    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitCpus:
    """Let a node use so many CPUs from now on; None gives back what the plan says."""

    node: str
    cpus: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Have the node's agent do something from inside: `node/orders/<name>.py`; `on` False undoes it."""

    node: str
    name: str
    values: Mapping[str, Any] = field(default_factory=dict)
    on: bool = True


Act = Signal | Pause | Start | LimitCpus | Order


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """The run that a fault is for, as it stands when it is lowered."""

    plan: Plan
    running: tuple[str, ...]  # nodes that run now
    addresses: Mapping[str, str] = field(
        default_factory=dict
    )  # node, and "master" -> IPv4 address; empty on the local engine
    ranks: Mapping[int, str] = field(default_factory=dict)  # rank -> its node, in the present round


@dataclass(frozen=True, slots=True, kw_only=True)
class Lowered:
    """What a fault does and how it is undone."""

    text: str  # in words, as the report and the live view say it: "node-1 is killed"
    do: tuple[Act, ...] = ()
    undo: tuple[Act, ...] = ()
    network: NetworkFault | None = None  # in force from `do` to `undo`: all networks are decided again at both
    loses: tuple[str, ...] = ()  # nodes whose loss, or the end of a rank of theirs, this fault accounts for

    @property
    def lasts(self) -> bool:
        """Whether there is anything to heal; else it is over once done (a rank that raised)."""
        return bool(self.undo or self.network)


class Kind(Protocol):
    """
    What the module of a kind provides.

    It may also have TARGET, what it is done to, where that is not one or more nodes ("nodes"): "rank", "groups" (`A,B C,D`,
    which become `nodes` and the option `groups`) or "none"; OPTIONS, its own options: see `Option`; and LASTS = False
    where it is over once done, so that there is nothing to heal.
    """

    SUMMARY: str  # one line for `composesim fault list`
    ENGINES: tuple[str, ...]  # engines that can do it
    NEEDS: str  # what the host must have besides: "", "netfilter", "tc", …; engine/lifetime/fault_support.py tries it

    def lower(self, fault: Fault, scene: Scene) -> Lowered:
        """The acts. SpecError where the fault makes no sense for this run, in words for the person."""
        ...


# An option of a kind: what reads its text (ValueError for a wrong one; `bool` for a flag), what it is when left out
# (`...`: it cannot be), and its help. The key `one_way` is `--one-way`, and so it stands in Fault.options.
Option = tuple[Callable[[str], Any], Any, str]


def target_of(kind: Kind) -> str:
    """What the kind is done to: "nodes", "rank", "groups" or "none"."""
    return str(getattr(kind, "TARGET", "nodes"))


def lasts(kind: Kind) -> bool:
    """Whether faults of the kind stay until they are healed."""
    return bool(getattr(kind, "LASTS", True))


def options_of(kind: Kind) -> Mapping[str, Option]:
    """The kind's own options, by their keys in Fault.options."""
    return cast(Mapping[str, Option], getattr(kind, "OPTIONS", {}))


def require_running(nodes: Sequence[str], scene: Scene) -> None:
    """SpecError for the first of these nodes that does not run now."""
    for node in nodes:
        if node not in scene.running:
            raise SpecError(
                f"{node} of the run '{scene.plan.run}' is not running",
                evidence=f"running now: {', '.join(scene.running) or 'no node'}",
                hint=f"composesim ps --run {scene.plan.run}",
            )


# Kind -> its one line of use, for --help and errors. A kind is `core/faults/<kind with _>.py`.
KINDS: dict[str, str] = {
    "kill": "NODE…",
    "term": "NODE…",
    "stop": "NODE…",
    "pause": "NODE…",
    "restart": "NODE…",
    "cpu": "NODE… --limit CPUS",
    "partition": "NODE,… NODE,… [--one-way] [--keep-master]",
    "isolate": "NODE…",
    "slow-link": "NODE… --rate RATE",
    "loss": "NODE… --rate PERCENT",
    "delay": "NODE… --time TIME",
    "memory": "NODE…",
    "disk-full": "NODE…",
    "processes-full": "NODE…",
    "corrupt-checkpoint": "[--how truncate|flip]",
    "rank-raise": "RANK",
    "rank-exit": "RANK [--code N]",
    "rank-segfault": "RANK",
    "rank-abort": "RANK",
    "rank-kill": "RANK",
    "rank-term": "RANK",
    "rank-interrupt": "RANK",
    "rank-stop": "RANK",
    "rank-hang": "RANK",
    "rank-lock-gil": "RANK",
    "rank-files-full": "RANK",
}


def load_kind(name: str) -> Kind:
    """The module of a kind; KeyError for a name that is none."""
    KINDS[name]
    return cast(Kind, import_module(f"compose_sim.core.faults.kinds.{name.replace('-', '_')}"))
