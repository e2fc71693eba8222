"""Define the fault that corrupts the newest file in the run's shared storage."""

from __future__ import annotations

from compose_sim.core.faults.commands import Fault
from compose_sim.core.faults.kind import AgentCommand, Effect, FaultKind, FaultOption, RunSnapshot
from compose_sim.errors import SpecError

_TEXTS = {"truncate": "the newest checkpoint is truncated", "flip": "the newest checkpoint has flipped bytes"}


def _method(text: str) -> str:
    if text not in _TEXTS:
        raise ValueError(f"'{text}' is neither truncate nor flip")
    return text


def _corrupt(fault: Fault, run: RunSnapshot) -> Effect:
    """Have the first node that is running corrupt the file, as the nodes' own user, and restore the bytes on heal."""
    if not run.running:
        raise SpecError("no node is running", hint=f"composesim ps --run {run.plan.run}")
    how = fault.options.get("how", "truncate")
    apply, revert = (
        AgentCommand(node=run.running[0], name="corrupt_checkpoint", values={"how": how}, on=on) for on in (True, False)
    )
    return Effect(fault=fault, text=_TEXTS[how], apply=(apply,), revert=(revert,))


KINDS = (
    FaultKind(
        name="corrupt-checkpoint",
        summary="Corrupt the newest checkpoint in $COMPOSESIM_SHARED.",
        effect=_corrupt,
        target="none",
        options={
            "how": FaultOption(
                parse=_method,
                metavar="truncate|flip",
                default="truncate",
                help="truncate: cut off the second half; flip: invert bytes in the middle.",
            )
        },
    ),
)
