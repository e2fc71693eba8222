"""Decide what an intervention means while other faults are active, and refuse it if it makes no sense."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from compose_sim.core.faults.commands import Fault, Heal, Scale
from compose_sim.core.faults.kind import AgentCommand, Effect, Pause, RunSnapshot, Signal, Start
from compose_sim.core.faults.parse import find_kind
from compose_sim.core.plan.model import Plan
from compose_sim.errors import SpecError

ActiveFaults = Mapping[str, Effect]  # by id: the faults that have begun and are not healed


def compile_fault(fault: Fault, run: RunSnapshot, active: ActiveFaults) -> Effect:
    """Return the effect of a fault; SpecError if it makes no sense now, or is active already."""
    plan = run.plan
    kind = find_kind(fault.kind, engine=plan.engine)
    for node in fault.nodes:
        if node not in {planned.name for planned in plan.nodes}:
            raise SpecError(
                f"there is no node '{node}' in the run '{plan.run}'", hint=f"composesim ps --run {plan.run}"
            )
    for identity, other in active.items():
        if _is_same(other.fault, fault):
            raise SpecError(f"{identity} is already active: {other.text}", hint=f"composesim heal {identity}")
    effect = kind.effect(fault, run)
    commanded = {action.node for action in effect.apply if isinstance(action, AgentCommand)}
    for identity, other in active.items():
        for node in sorted(commanded & _frozen_by(other)):
            raise SpecError(
                f"{node} cannot execute this fault while {identity} is active ({other.text})",
                hint=f"composesim heal {identity}",
            )
    if fault.for_s is not None and not effect.lasts:
        raise SpecError(f"'{fault.kind}' is instantaneous; --for does not apply", hint="leave out --for")
    return effect


def _frozen_by(effect: Effect) -> set[str]:
    """Return the nodes whose processes are all stopped while the fault is active."""
    return {
        action.node
        for action in effect.apply
        if isinstance(action, Pause) or (isinstance(action, Signal) and action.name == "STOP")
    }


def _is_same(one: Fault, other: Fault) -> bool:
    """Return whether the two faults are the same. A new limit may replace an old one."""
    about = (one.kind, one.rank, one.options) == (other.kind, other.rank, other.options)
    return about and (not one.nodes or not other.nodes or not set(one.nodes).isdisjoint(other.nodes))


def faults_to_heal(heal: Heal, active: ActiveFaults, plan: Plan) -> tuple[str, ...]:
    """Return the ids of the faults to heal; SpecError if there are none."""
    target, hint = heal.target, f"composesim ps --run {plan.run}"
    found = tuple(identity for identity, effect in active.items() if target in ("", identity) or _is_on(effect, target))
    if found:
        return found
    evidence = f"active: {', '.join(f'{identity} ({effect.text})' for identity, effect in active.items())}"
    if not target:
        raise SpecError(f"the run '{plan.run}' has no active faults", hint=hint)
    is_node = target in {node.name for node in plan.nodes}
    message = f"{target} has no active faults" if is_node else f"there is no active fault '{target}'"
    raise SpecError(message, evidence=evidence if active else "", hint=hint)


def _is_on(effect: Effect, node: str) -> bool:
    """Whether the fault is on a node, or on a rank of the node."""
    of_rank = effect.revert if effect.fault.rank is not None else ()
    return node in (*effect.fault.nodes, *(action.node for action in of_rank))


def healed_by_start(node: str, active: ActiveFaults, running: Iterable[str]) -> tuple[str, ...]:
    """Return the ids of the faults that the start of a node heals, because they consisted only of these nodes being down."""
    up = {node, *running}
    healed = []
    for identity, effect in active.items():
        starts = [action.node for action in effect.revert if isinstance(action, Start)]
        if starts and len(starts) == len(effect.revert) and node in starts and up.issuperset(starts):
            healed.append(identity)
    return tuple(healed)


def scaled_nodes(scale: Scale, plan: Plan, wanted: Sequence[str]) -> tuple[str, ...]:
    """
    Return the nodes that take part after scaling, in node order.

    The last nodes leave, and the first absent ones join. SpecError if the run is not elastic, or for a number outside the range.
    """
    if plan.elastic is None:
        raise SpecError(
            f"the run '{plan.run}' is not elastic: its size is fixed at {len(plan.nodes)} nodes",
            hint="composesim up --elastic 2:4 --max-restarts 3 …",
        )
    least, most = plan.elastic
    if not least <= scale.nodes <= most:
        raise SpecError(f"cannot scale the run '{plan.run}' to {scale.nodes} nodes: its range is {least}:{most}")
    order = [node.name for node in plan.nodes]
    present = [name for name in order if name in wanted]
    others = [name for name in order if name not in wanted]
    return tuple(sorted((present + others)[: scale.nodes], key=order.index))
