"""Detect recoveries: training continues after a loss with the first step of a later round."""

from __future__ import annotations

from collections.abc import Iterator

from compose_sim.core.faults.record import FaultRecord
from compose_sim.core.state.fault_attribution import fault_of, is_excused, round_after
from compose_sim.core.state.state import ClusterState, Failure, Recovery, Round

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
