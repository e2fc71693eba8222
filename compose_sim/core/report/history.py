"""Report what happened to a run: faults, rounds and recoveries."""

from __future__ import annotations

from compose_sim.core.faults.record import FaultRecord
from compose_sim.core.report.report import FaultReport, RecoveryReport, RoundReport
from compose_sim.core.state.state import ClusterState


def fault_reports(state: ClusterState) -> tuple[FaultReport, ...]:
    """Return the faults in the order in which they were injected."""
    recovered = {recovery.fault: recovery for recovery in state.recoveries}
    reports = []
    for fault in state.faults.values():
        recovery = recovered.get(fault.id)
        reports.append(
            FaultReport(
                id=fault.id,
                kind=fault.kind,
                nodes=fault.nodes,
                rank=fault.rank,
                text=fault.text,
                for_s=fault.for_s,
                begun_s=seconds_between(state.started_at, fault.begun_at),
                healed_s=seconds_between(state.started_at, fault.healed_at),
                recovered_s=recovery.seconds if recovery else None,
                steps_lost=recovery.steps_lost if recovery else None,
                back_s=seconds_between(fault.begun_at, _back_at(state, fault)),
            )
        )
    return tuple(reports)


def round_reports(state: ClusterState) -> tuple[RoundReport, ...]:
    """Return the rounds in order."""
    return tuple(
        RoundReport(
            generation=each.generation,
            world_size=each.world_size,
            nodes=each.nodes,
            began_s=seconds_between(state.started_at, each.began_at),
        )
        for each in state.rounds
    )


def recovery_reports(state: ClusterState) -> tuple[RecoveryReport, ...]:
    """Return the losses after which training continued, each with the nodes of the round in which it did."""
    nodes = {each.generation: each.nodes for each in state.rounds}
    return tuple(
        RecoveryReport(
            fault=each.fault,
            cause=each.cause,
            seconds=each.seconds,
            world_size=each.world_size,
            nodes=nodes.get(each.generation, ()) if each.generation is not None else (),
            steps_lost=each.steps_lost,
        )
        for each in state.recoveries
    )


def seconds_between(start: float | None, moment: float | None) -> float | None:
    """Return the seconds from one moment to another; None if either did not happen."""
    return round(moment - start, 3) if moment is not None and start is not None else None


def _back_at(state: ClusterState, fault: FaultRecord) -> float | None:
    """Return when the nodes that a fault removed took part again; None if it removed none or they did not."""
    lost = set(fault.loses)
    without = next(
        (each for each in state.rounds if each.began_at >= fault.begun_at and not lost <= set(each.nodes)), None
    )
    if not lost or without is None:
        return None
    later = (each for each in state.rounds if each.began_at > without.began_at and lost <= set(each.nodes))
    return next((each.began_at for each in later), None)
