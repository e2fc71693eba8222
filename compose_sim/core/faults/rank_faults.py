"""How is a fault of one rank lowered? To an order for the node that has the rank in this round."""

from __future__ import annotations

from typing import Any

from compose_sim.core.faults import Lowered, Order, Scene, require_running
from compose_sim.core.faults.commands import Fault
from compose_sim.errors import SpecError


def ended(fault: Fault, scene: Scene, *, how: str, order: str, **values: Any) -> Lowered:
    """A fault that ends the rank, and is over with that."""
    node, do = _order(fault, scene, order, values)
    text = f"rank {fault.rank} on {node} {how}"
    return Lowered(text=text, do=(do,), loses=(node,))


def held(fault: Fault, scene: Scene, *, how: str, order: str, **values: Any) -> Lowered:
    """A fault that the rank survives, and that is undone when it is healed."""
    node, do = _order(fault, scene, order, values)
    undo = Order(node=node, name=order, values=do.values, on=False)
    return Lowered(text=f"rank {fault.rank} on {node} {how}", do=(do,), undo=(undo,))


def _order(fault: Fault, scene: Scene, name: str, values: dict[str, Any]) -> tuple[str, Order]:
    node = scene.ranks.get(-1 if fault.rank is None else fault.rank)
    if node is None:
        there = f"ranks 0 to {max(scene.ranks)}" if scene.ranks else "no rank"
        raise SpecError(
            f"rank {fault.rank} does not run now: this round of '{scene.plan.run}' has {there}",
            hint=f"composesim ps --run {scene.plan.run}",
        )
    require_running((node,), scene)
    return node, Order(node=node, name=name, values={"rank": fault.rank, **values})
