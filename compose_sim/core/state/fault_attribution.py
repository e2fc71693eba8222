"""Which losses does an injected fault account for, and which nodes are due back?

All of it is told by the state alone, so it does not matter in which order the events of several files were read.
"""

from __future__ import annotations

from compose_sim.core.state.state import ClusterState, Failure, FaultState, Round

_PATIENCE_S = 10.0  # how long after its end something may still be told that a fault did
_TOLD_LATE_S = 5.0  # the engine's word on a node that ended is written a moment after it was started again


def fault_of(state: ClusterState, failure: Failure) -> FaultState | None:
    """The fault that a failure came from: it hit the node itself, or one that took part in the same round."""
    accounting = [fault for fault in state.faults.values() if _accounts(state, fault, failure)]
    direct = [fault for fault in accounting if failure.node in fault.loses]
    return max(direct or accounting, key=lambda fault: fault.begun_at, default=None)


def is_excused(state: ClusterState, failure: Failure) -> bool:
    """Whether a failure was brought about on purpose: by a fault, or by a node that was sent away."""
    if failure.injected or fault_of(state, failure):
        return True
    then = _generation_at(state, state.wanted_at)
    return bool(state.wanted_at) and failure.t >= state.wanted_at and _generation_of(state, failure) <= then


def round_after(state: ClusterState, failure: Failure) -> Round | None:
    """The first round that began without what was lost in it."""
    generation = _generation_of(state, failure)
    return next((each for each in state.rounds if each.generation > generation), None)


def lasting(state: ClusterState) -> tuple[FaultState, ...]:
    """The faults that are there to be healed."""
    return tuple(fault for fault in state.faults.values() if fault.lasts and fault.healed_at is None)


def is_due_back(state: ClusterState, name: str) -> bool:
    """Whether a node that is gone will take part again without anybody's doing, or is being started at this moment."""
    return is_promised(state, name) or _is_being_started(state, name)


def is_promised(state: ClusterState, name: str) -> bool:
    """Whether a fault that took a node away will give it back, or is just doing so."""
    return state.nodes[name].is_gone and any(
        name in fault.loses and (fault.for_s is not None or fault.heal_begun_at is not None) for fault in lasting(state)
    )


def last_hope(state: ClusterState, name: str) -> float:
    """When something was last done to bring back a node that is gone; else when it went."""
    healed = (fault.healed_at if fault.lasts else fault.done_at for fault in _faults_on(state, name))
    return max(state.nodes[name].gone_at or 0.0, state.wanted_at, *(at for at in healed if at is not None))


def _is_being_started(state: ClusterState, name: str) -> bool:
    node = state.nodes[name]
    if not node.is_gone or node.gone_at is None:
        return False
    if name in state.wanted and node.gone_at < state.wanted_at:
        return True
    return any(_has_just_started(fault, node.gone_at) for fault in _faults_on(state, name))


def _has_just_started(fault: FaultState, gone_at: float) -> bool:
    """Whether a node that went at that time went by this fault, which is over: it was started again, and has not spoken yet."""
    ended_at = fault.healed_at if fault.lasts else fault.done_at
    return ended_at is not None and fault.begun_at <= gone_at <= ended_at + _TOLD_LATE_S


def _faults_on(state: ClusterState, name: str) -> tuple[FaultState, ...]:
    return tuple(fault for fault in state.faults.values() if name in (*fault.loses, *fault.nodes))


def _accounts(state: ClusterState, fault: FaultState, failure: Failure) -> bool:
    if not fault.loses or failure.t < fault.begun_at:
        return False
    if fault.lasts and fault.healed_at is not None and failure.t > fault.healed_at + _PATIENCE_S:
        return False  # what is done at once may bite late: a rank that hangs is given up when a collective times out
    generation = _generation_of(state, failure)
    if failure.node not in fault.loses:
        round_ = next((each for each in state.rounds if each.generation == generation), None)
        if not round_ or not set(round_.nodes) & set(fault.loses):
            return False
    closing = _closing(state, fault)
    return closing is None or generation < closing.generation


def _closing(state: ClusterState, fault: FaultState) -> Round | None:
    """The round with which a fault's consequences end: all nodes are back, or what it ended has been begun anew."""
    if fault.lasts:
        if fault.healed_at is None:
            return None
        healed_at, lost = fault.healed_at, set(fault.loses)
        return next((each for each in state.rounds if each.began_at >= healed_at and lost <= set(each.nodes)), None)
    hits = [failure for failure in state.failures if failure.t >= fault.begun_at and failure.node in fault.loses]
    return round_after(state, min(hits, key=lambda failure: failure.t)) if hits else None


def _generation_of(state: ClusterState, failure: Failure) -> int:
    return _generation_at(state, failure.t) if failure.generation is None else failure.generation


def _generation_at(state: ClusterState, t: float) -> int:
    return max((each.generation for each in state.rounds if each.began_at <= t), default=-1)
