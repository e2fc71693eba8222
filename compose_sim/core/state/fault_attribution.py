"""Attribute losses to injected faults, decide which nodes are expected back, and detect recoveries.

Everything follows from the state, so it does not matter in which order the events of several files were read.
"""

from __future__ import annotations

from collections.abc import Iterator

from compose_sim.core.faults.record import FaultRecord
from compose_sim.core.state.state import ClusterState, Failure, Recovery, Round

_AFTER_HEAL_S = 10.0  # failures up to this long after a heal may still be due to the fault
_REPORTED_LATE_S = 5.0  # the engine reports the end of a node a moment after the node was started again


def fault_of(state: ClusterState, failure: Failure) -> FaultRecord | None:
    """Return the fault that explains a failure: it hit the node itself, or another node of the same round."""
    explaining = [fault for fault in state.faults.values() if _explains(state, fault, failure)]
    direct = [fault for fault in explaining if failure.node in fault.loses]
    return max(direct or explaining, key=lambda fault: fault.begun_at, default=None)


def is_excused(state: ClusterState, failure: Failure) -> bool:
    """Whether a failure was caused on purpose: by a fault, or by scaling down."""
    if failure.injected or fault_of(state, failure):
        return True
    then = _generation_at(state, state.wanted_at)
    return bool(state.wanted_at) and failure.t >= state.wanted_at and generation_of(state, failure) <= then


def round_after(state: ClusterState, failure: Failure) -> Round | None:
    """Return the first round that began after the one of a failure."""
    generation = generation_of(state, failure)
    return next((each for each in state.rounds if each.generation > generation), None)


def generation_of(state: ClusterState, failure: Failure) -> int:
    """Return the round in which a failure happened, -1 before the first one."""
    return _generation_at(state, failure.t) if failure.generation is None else failure.generation


def active_faults(state: ClusterState) -> tuple[FaultRecord, ...]:
    """Return the faults that can be healed."""
    return tuple(fault for fault in state.faults.values() if fault.lasts and fault.healed_at is None)


def is_due_back(state: ClusterState, name: str) -> bool:
    """Whether a node that is gone will come back without any further action, or is being started right now."""
    return is_promised(state, name) or _is_being_started(state, name)


def is_promised(state: ClusterState, name: str) -> bool:
    """Whether the fault that took a node away has a timer, or is being healed."""
    return state.nodes[name].is_gone and any(
        name in fault.loses and (fault.for_s is not None or fault.heal_begun_at is not None)
        for fault in active_faults(state)
    )


def last_hope(state: ClusterState, name: str) -> float:
    """Return when something was last done to bring back a node that is gone, or else when it went."""
    healed = (fault.healed_at if fault.lasts else fault.done_at for fault in _faults_on(state, name))
    return max(state.nodes[name].gone_at or 0.0, state.wanted_at, *(at for at in healed if at is not None))


def _is_being_started(state: ClusterState, name: str) -> bool:
    node = state.nodes[name]
    if not node.is_gone or node.gone_at is None:
        return False
    if name in state.wanted and node.gone_at < state.wanted_at:
        return True
    return any(_has_just_started(fault, node.gone_at) for fault in _faults_on(state, name))


def _has_just_started(fault: FaultRecord, gone_at: float) -> bool:
    """Whether the fault took a node that went at this time; the fault is over, so the node is starting again."""
    ended_at = fault.healed_at if fault.lasts else fault.done_at
    return ended_at is not None and fault.begun_at <= gone_at <= ended_at + _REPORTED_LATE_S


def _faults_on(state: ClusterState, name: str) -> tuple[FaultRecord, ...]:
    return tuple(fault for fault in state.faults.values() if name in (*fault.loses, *fault.nodes))


def _explains(state: ClusterState, fault: FaultRecord, failure: Failure) -> bool:
    if not fault.loses or failure.t < fault.begun_at:
        return False
    if fault.lasts and fault.healed_at is not None and failure.t > fault.healed_at + _AFTER_HEAL_S:
        return False  # only an instantaneous fault may take effect late: a collective may time out long after it
    generation = generation_of(state, failure)
    if failure.node not in fault.loses:
        round_ = next((each for each in state.rounds if each.generation == generation), None)
        if not round_ or not set(round_.nodes) & set(fault.loses):
            return False
    closing = _closing(state, fault)
    return closing is None or generation < closing.generation


def _closing(state: ClusterState, fault: FaultRecord) -> Round | None:
    """Return the round that ends the consequences of a fault: all nodes are back, or what it ended has started again."""
    if fault.lasts:
        if fault.healed_at is None:
            return None
        healed_at, lost = fault.healed_at, set(fault.loses)
        return next((each for each in state.rounds if each.began_at >= healed_at and lost <= set(each.nodes)), None)
    hits = [failure for failure in state.failures if failure.t >= fault.begun_at and failure.node in fault.loses]
    return round_after(state, min(hits, key=lambda failure: failure.t)) if hits else None


def _generation_at(state: ClusterState, t: float) -> int:
    return max((each.generation for each in state.rounds if each.began_at <= t), default=-1)


_LINE_PATIENCE_S = 10.0  # how long after the first step of a round to wait for the first metric line
_ROUNDS_LOOKED_AT = 4  # rounds with steps; earlier losses were reported long ago


def newly_recovered(state: ClusterState) -> Recovery | None:
    """Return a recovery, from an injected loss or another one, that is not in `state.recoveries` yet."""
    reported = {recovery.fault for recovery in state.recoveries if recovery.fault}
    reported_rounds = {recovery.generation for recovery in state.recoveries}
    for loss, fault in _losses(state):
        if (fault.id in reported) if fault else (_round_of(state, loss) in reported_rounds):
            continue
        recovery = _recovery(state, loss, fault)
        if recovery:
            return recovery
    return None


def _losses(state: ClusterState) -> Iterator[tuple[Failure, FaultRecord | None]]:
    """Yield the losses of the last rounds, each with the fault that caused it; for each fault only the first loss."""
    steps = [each.began_at for each in state.rounds if each.first_step_at is not None]
    since = steps[-_ROUNDS_LOOKED_AT] if len(steps) >= _ROUNDS_LOOKED_AT else 0.0
    seen: set[str] = set()
    for failure in sorted((each for each in state.failures if each.t >= since), key=lambda each: each.t):
        fault = fault_of(state, failure)
        if fault and fault.id not in seen:
            seen.add(fault.id)
            yield failure, fault
        elif not fault and not is_excused(state, failure):
            yield failure, None


def _recovery(state: ClusterState, loss: Failure, fault: FaultRecord | None) -> Recovery | None:
    after = _round_of(state, loss)
    new = next((each for each in state.rounds if each.generation == after), None)
    if new is None or new.first_step_at is None or _expects_metric_line(state, new):
        return None
    return Recovery(
        fault=fault.id if fault else None,
        cause=fault.text if fault else loss.message,
        seconds=round(max(0.0, new.first_step_at - (fault.begun_at if fault else loss.t)), 3),
        world_size=new.world_size,
        steps_lost=_steps_lost(state, new),
        generation=new.generation,
    )


def _round_of(state: ClusterState, loss: Failure) -> int | None:
    """Return the generation in which training continued after a loss: the next one with a step."""
    after = round_after(state, loss)
    rounds = (each for each in state.rounds if after and each.generation >= after.generation)
    return next((each.generation for each in rounds if each.first_step_at is not None), None)


def _expects_metric_line(state: ClusterState, new: Round) -> bool:
    """Return whether the first metric line of the round is still expected, if ranks print any."""
    if new.first_step is not None or _last_before(state, new) is None:
        return False
    is_present = new.generation == state.generation and state.outcome is None and not state.stopping
    return is_present and state.last_t <= (new.first_step_at or 0.0) + _LINE_PATIENCE_S


def _steps_lost(state: ClusterState, new: Round) -> int | None:
    """Return the number of repeated steps. With a metric line every k steps, a round begins k steps before the first one."""
    last = _last_before(state, new)
    if last is None or new.first_step is None:
        return None
    return max(0, last - new.first_step + (state.metric_interval or 1))


def _last_before(state: ClusterState, new: Round) -> int | None:
    """Return the last step in a metric line before a round."""
    earlier = (each.last_step for each in reversed(state.rounds) if each.generation < new.generation)
    return next((step for step in earlier if step is not None), None)
