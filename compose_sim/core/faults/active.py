"""Which interventions make sense as a run stands now? What is broken, what may be broken besides, and what a heal or a scale means."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from compose_sim.core.faults import Lowered, Order, Pause, Scene, Signal, Start
from compose_sim.core.faults.commands import Fault, Heal, Scale
from compose_sim.core.faults.parse import kind_named
from compose_sim.core.plan.model import Plan
from compose_sim.errors import SpecError


@dataclass(frozen=True, slots=True, kw_only=True)
class Ongoing:
    """A fault that has begun and is not healed."""

    id: str
    fault: Fault
    lowered: Lowered


def lower_fault(fault: Fault, scene: Scene, ongoing: Collection[Ongoing]) -> Lowered:
    """What to do; SpecError where the fault makes no sense now, or is there already."""
    kind, plan = kind_named(fault.kind), scene.plan
    if plan.engine not in kind.ENGINES:
        raise SpecError(
            f"'{fault.kind}' cannot be done on the {plan.engine} engine", hint="composesim up --engine docker …"
        )
    for node in fault.nodes:
        if node not in {planned.name for planned in plan.nodes}:
            raise SpecError(
                f"there is no node '{node}' in the run '{plan.run}'", hint=f"composesim ps --run {plan.run}"
            )
    same = next((each for each in ongoing if _is_same(each.fault, fault)), None)
    if same:
        raise SpecError(f"{same.lowered.text} already, by {same.id}", hint=f"composesim heal {same.id}")
    lowered = kind.lower(fault, scene)
    for held in ongoing:
        deaf = next((act.node for act in lowered.do if isinstance(act, Order) and act.node in _held_by(held)), None)
        if deaf:
            message = f"{deaf} can do nothing to itself now: {held.lowered.text}, by {held.id}"
            raise SpecError(message, hint=f"composesim heal {held.id}")
    if fault.for_s is not None and not lowered.lasts:
        raise SpecError(f"'{fault.kind}' is over once done: it cannot be for a time", hint="leave out --for")
    return lowered


def _held_by(each: Ongoing) -> set[str]:
    """Nodes of which no process moves while the fault lasts."""
    return {
        act.node
        for act in each.lowered.do
        if isinstance(act, Pause) or (isinstance(act, Signal) and act.name == "STOP")
    }


def _is_same(one: Fault, other: Fault) -> bool:
    """Whether one of them adds nothing to the other. A limit may be followed by another limit."""
    about = (one.kind, one.rank, one.options) == (other.kind, other.rank, other.options)
    return about and (not one.nodes or not other.nodes or not set(one.nodes).isdisjoint(other.nodes))


def faults_to_heal(heal: Heal, ongoing: Mapping[str, Ongoing], plan: Plan) -> tuple[str, ...]:
    """Ids of the faults that are meant; SpecError where there is none."""
    target = heal.target
    known = f"there is: {', '.join(f'{each.id} ({each.lowered.text})' for each in ongoing.values())}"
    evidence = known if ongoing else ""
    if not target:
        if not ongoing:
            raise SpecError(f"nothing of the run '{plan.run}' is broken", hint=f"composesim ps --run {plan.run}")
        return tuple(ongoing)
    if target in ongoing:
        return (target,)
    found = tuple(each.id for each in ongoing.values() if _bears_on(each, target))
    if found:
        return found
    if target in {node.name for node in plan.nodes}:
        raise SpecError(f"nothing of {target} is broken", evidence=evidence, hint=f"composesim ps --run {plan.run}")
    raise SpecError(f"there is no fault '{target}' to heal", evidence=evidence, hint=f"composesim ps --run {plan.run}")


def _bears_on(each: Ongoing, node: str) -> bool:
    """Whether a fault was done to a node, or to a rank of its."""
    of_rank = each.lowered.undo if each.fault.rank is not None else ()
    return node in (*each.fault.nodes, *(act.node for act in of_rank))


def over_by_start(node: str, ongoing: Mapping[str, Ongoing], running: Iterable[str]) -> tuple[str, ...]:
    """Ids of faults that a node's start has healed: all that it takes to undo them is that nodes run which do run now."""
    up = {node, *running}
    healed = []
    for each in ongoing.values():
        starts = [act.node for act in each.lowered.undo if isinstance(act, Start)]
        if starts and len(starts) == len(each.lowered.undo) and node in starts and up.issuperset(starts):
            healed.append(each.id)
    return tuple(healed)


def lower_scale(scale: Scale, plan: Plan, wanted: Sequence[str]) -> tuple[str, ...]:
    """
    The nodes that take part from now on, in node order.

    The last ones leave, and the first ones that do not take part come. SpecError where the run is not elastic, or not so far.
    """
    if plan.elastic is None:
        raise SpecError(
            f"the run '{plan.run}' is not elastic: it has {len(plan.nodes)} nodes from beginning to end",
            hint="composesim up --elastic 2:4 --max-restarts 3 …",
        )
    least, most = plan.elastic
    if not least <= scale.nodes <= most:
        raise SpecError(f"{scale.nodes} nodes are not within {least}:{most}, the range of the run '{plan.run}'")
    order = [node.name for node in plan.nodes]
    present = [name for name in order if name in wanted]
    others = [name for name in order if name not in wanted]
    return tuple(sorted((present + others)[: scale.nodes], key=order.index))
