"""Define the fault of a GPU: the rank that uses it gets CUDA's error."""

from __future__ import annotations

from compose_sim.core.faults.commands import Fault
from compose_sim.core.faults.effects import AgentCommand, Effect
from compose_sim.core.faults.kind import FaultKind, FaultOption, RunSnapshot, require_running
from compose_sim.errors import SpecError

_TEXTS = {
    "xid": "has an illegal memory access (Xid 31)",
    "ecc": "has an uncorrectable ECC error (Xid 48)",
    "lost": "has fallen off the bus (Xid 79)",
    "oom": "is out of memory",
}


def _kind(text: str) -> str:
    if text not in _TEXTS:
        raise ValueError(f"'{text}' is none of {', '.join(_TEXTS)}")
    return text


def _fail(fault: Fault, run: RunSnapshot) -> Effect:
    """Have the first rank of each node raise the error, because a GPU belongs to one rank."""
    require_running(fault.nodes, run)
    kind = fault.options["kind"]
    apply = []
    for node in fault.nodes:
        rank = min((rank for rank, its_node in run.ranks.items() if its_node == node), default=None)
        if rank is None:
            raise SpecError(f"no rank is running on {node}", hint=f"composesim ps --run {run.plan.run}")
        apply.append(
            AgentCommand(node=node, name="rank_fault", values={"rank": rank, "action": "gpu-error", "kind": kind})
        )
    return Effect(
        fault=fault,
        text=f"the GPU of {', '.join(fault.nodes)} {_TEXTS[kind]}",
        apply=tuple(apply),
        loses=fault.nodes,
    )


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
)
