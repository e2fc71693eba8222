"""What can be broken on purpose, and what does each fault mean? One pure file a kind; this module says what a kind is.

A kind lowers a Fault to acts: the few things that an engine can do to a node. The acts that undo it are made at the same moment, so
that a fault can be healed whatever happened to the run meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Protocol, cast

from compose_sim.core.interventions import Fault
from compose_sim.core.plan import Plan


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
class Network:
    """Run these commands (`tc`, `iptables` and the like) in the node's network namespace, all or none."""

    node: str
    commands: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Have the node's agent do something from inside: `node/orders/<name>.py`; `on` False undoes it."""

    node: str
    name: str
    values: Mapping[str, Any] = field(default_factory=dict)
    on: bool = True


Act = Signal | Pause | Start | LimitCpus | Network | Order


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """The run that a fault is for, as it stands when it is lowered."""

    plan: Plan
    running: tuple[str, ...]  # nodes that run now
    addresses: Mapping[str, str] = field(
        default_factory=dict
    )  # node, and "master" -> IPv4 address; empty on the local engine


@dataclass(frozen=True, slots=True, kw_only=True)
class Lowered:
    """What a fault does and how it is undone."""

    text: str  # in words, as the report and the live view say it: "node-1 is killed"
    do: tuple[Act, ...]
    undo: tuple[Act, ...]
    loses: tuple[str, ...] = ()  # nodes whose loss, or the end of a rank of theirs, this fault accounts for
    lasts: bool = True  # False: it is over once done (a rank that raised): there is nothing to heal


class Kind(Protocol):
    """What the module of a kind provides."""

    SUMMARY: str  # one line for `composesim fault list`
    ENGINES: tuple[str, ...]  # engines that can do it
    NEEDS: str  # what the host must have besides: "", "netfilter", "tc", …; `fault list` tries it

    def lower(self, fault: Fault, scene: Scene) -> Lowered:
        """The acts. SpecError where the fault makes no sense for this run, in words for the person."""
        ...


# Kind -> its one line of use, for --help and errors. A kind is `core/faults/<kind with _>.py`.
KINDS: dict[str, str] = {
    "kill": "NODE",
}


def load_kind(name: str) -> Kind:
    """The module of a kind; KeyError for a name that is none."""
    KINDS[name]
    return cast(Kind, import_module(f"compose_sim.core.faults.{name.replace('-', '_')}"))
