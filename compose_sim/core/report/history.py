"""What was done to a run, and how did it go on? Faults, rounds and recoveries, as values of its report."""

from __future__ import annotations

from typing import Any

from compose_sim.core.faults.record import FaultRecord
from compose_sim.core.state.state import ClusterState


def fault_values(state: ClusterState) -> list[dict[str, Any]]:
    """
    A value a fault, in the order in which they were injected.

    `begun_s` and `healed_s` are seconds since the start of the run; `recovered_s` (to the first new step) and `back_s` (to the
    round in which all of its nodes take part again) since the fault. Null for what did not happen.
    """
    recovered = {recovery.fault: recovery for recovery in state.recoveries}
    values = []
    for fault in state.faults.values():
        recovery = recovered.get(fault.id)
        back_at = _back_at(state, fault)
        values.append(
            {
                **fault.to_dict(),
                "begun_s": _since(state.started_at, fault.begun_at),
                "healed_s": _since(state.started_at, fault.healed_at),
                "recovered_s": recovery.seconds if recovery else None,
                "steps_lost": recovery.steps_lost if recovery else None,
                "back_s": _since(fault.begun_at, back_at),
            }
        )
    return values


def round_values(state: ClusterState) -> list[dict[str, Any]]:
    """A value a round; `began_s` in seconds since the start of the run."""
    return [
        {
            "generation": each.generation,
            "world_size": each.world_size,
            "nodes": list(each.nodes),
            "began_s": _since(state.started_at, each.began_at),
        }
        for each in state.rounds
    ]


def recovery_values(state: ClusterState) -> list[dict[str, Any]]:
    """A value a loss after which training went on; `nodes` of the round in which it did."""
    nodes = {each.generation: each.nodes for each in state.rounds}
    return [
        {
            "fault": each.fault,
            "cause": each.cause,
            "seconds": each.seconds,
            "world_size": each.world_size,
            "nodes": list(nodes.get(each.generation, ())) if each.generation is not None else [],
            "steps_lost": each.steps_lost,
        }
        for each in state.recoveries
    ]


def _back_at(state: ClusterState, fault: FaultRecord) -> float | None:
    """When the nodes that a fault took away took part again, if it took any."""
    lost = set(fault.loses)
    without = next(
        (each for each in state.rounds if each.began_at >= fault.begun_at and not lost <= set(each.nodes)), None
    )
    if not lost or without is None:
        return None
    later = (each for each in state.rounds if each.began_at > without.began_at and lost <= set(each.nodes))
    return next((each.began_at for each in later), None)


def _since(start: float | None, moment: float | None) -> float | None:
    return round(moment - start, 3) if moment is not None and start is not None else None
