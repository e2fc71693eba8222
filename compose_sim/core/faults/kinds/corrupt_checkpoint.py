"""What is a broken checkpoint? The newest file in the run's shared storage, cut short or with changed bytes in its middle."""

from __future__ import annotations

from compose_sim.core.faults import Lowered, Option, Order, Scene
from compose_sim.core.faults.commands import Fault
from compose_sim.errors import SpecError

_WAYS = ("truncate", "flip")


def _how(text: str) -> str:
    if text not in _WAYS:
        raise ValueError(f"'{text}' is neither truncate nor flip")
    return text


TARGET = "none"
SUMMARY = "Break the newest checkpoint in $COMPOSESIM_SHARED."
ENGINES = ("docker", "local")
NEEDS = ""
OPTIONS: dict[str, Option] = {
    "how": (_how, "truncate", "truncate: half of the file is left; flip: bytes in its middle are changed.")
}


def lower(fault: Fault, scene: Scene) -> Lowered:
    """Done by the first node that runs, as the nodes' own user; the bytes are put back when it is healed."""
    if not scene.running:
        raise SpecError("no node is running that could do it", hint=f"composesim ps --run {scene.plan.run}")
    node, values = scene.running[0], {"how": fault.options.get("how", "truncate")}
    what = "cut short" if values["how"] == "truncate" else "changed"
    return Lowered(
        text=f"the newest checkpoint is {what}",
        do=(Order(node=node, name="corrupt_checkpoint", values=values),),
        undo=(Order(node=node, name="corrupt_checkpoint", values=values, on=False),),
    )
