"""Define the faults of a GPU: the rank that uses it gets CUDA's error, or waits for it longer."""

from __future__ import annotations

from typing import Any

from compose_sim.core.faults.commands import Fault
from compose_sim.core.faults.kind import AgentCommand, Effect, FaultKind, FaultOption, RunSnapshot, require_running
from compose_sim.errors import SpecError

_TEXTS = {
    "xid": "has an illegal memory access (Xid 31)",
    "ecc": "has an uncorrectable ECC error (Xid 48)",
    "lost": "has fallen off the bus (Xid 79)",
    "oom": "is out of memory",
}
_TWICE = 2.0


def _kind(text: str) -> str:
    if text not in _TEXTS:
        raise ValueError(f"'{text}' is none of {', '.join(_TEXTS)}")
    return text


def _factor(text: str) -> float:
    value = float(text.removesuffix("x"))  # ValueError is reported as well
    if not 1 < value <= 100:
        raise ValueError(f"'{text}' is not between 1 and 100")
    return value


def _fail(fault: Fault, run: RunSnapshot) -> Effect:
    kind = fault.options["kind"]
    return Effect(
        fault=fault,
        text=f"the GPU of {', '.join(fault.nodes)} {_TEXTS[kind]}",
        apply=_commands(fault, run, action="gpu-error", kind=kind),
        loses=fault.nodes,
    )


def _slow_down(fault: Fault, run: RunSnapshot) -> Effect:
    by = fault.options.get("by", _TWICE)
    return Effect(
        fault=fault,
        text=f"the GPU of {', '.join(fault.nodes)} takes {by:g} times as long for a step",
        apply=_commands(fault, run, action="gpu-slow", by=by),
        revert=_commands(fault, run, action="gpu-slow", by=by, on=False),
    )


def _commands(fault: Fault, run: RunSnapshot, *, on: bool = True, **values: Any) -> tuple[AgentCommand, ...]:
    """Return a command for the first rank of each node, because a GPU belongs to one rank."""
    require_running(fault.nodes, run)
    commands = []
    for node in fault.nodes:
        rank = min((rank for rank, its_node in run.ranks.items() if its_node == node), default=None)
        if rank is None:
            raise SpecError(f"no rank is running on {node}", hint=f"composesim ps --run {run.plan.run}")
        commands.append(AgentCommand(node=node, name="rank_fault", values={"rank": rank, **values}, on=on))
    return tuple(commands)


KINDS = (
    FaultKind(
        name="gpu-error",
        summary="Raise what CUDA raises for a broken GPU, in the first rank of a node.",
        effect=_fail,
        options={
            "kind": FaultOption(
                parse=_kind,
                metavar="xid|ecc|lost|oom",
                help="xid: illegal memory access; ecc: uncorrectable ECC error; lost: fallen off the bus; oom: out of memory.",
            )
        },
        lasts=False,
    ),
    FaultKind(
        name="gpu-slow",
        summary="Slow down the GPU of the first rank of a node: a straggler.",
        effect=_slow_down,
        options={
            "by": FaultOption(
                parse=_factor, metavar="N", default=_TWICE, help="How many times as long a step takes on that GPU."
            )
        },
    ),
)
