"""Define what a kind of fault consists of: the syntax, the requirements, and the compilation to an effect."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from compose_sim.core.faults.commands import Fault
from compose_sim.core.faults.effects import Effect
from compose_sim.core.plan.model import Plan
from compose_sim.errors import SpecError

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
    engines: tuple[str, ...] = ("docker", "local", "slurm")
    needs: str = ""  # a capability of the host: "tc", "netfilter", …; engine/lifetime/fault_support.py tests for it
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
