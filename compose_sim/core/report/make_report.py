"""Make the report of a run from the plan and the last state, and the table of `composesim stats`.

Every command gets the report from here, even after a crash.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from compose_sim.core.faults.record import FaultRecord
from compose_sim.core.host.torch_versions import torch_range
from compose_sim.core.plan.model import Plan, PlannedNode
from compose_sim.core.report.bottleneck import Bottleneck, RankTimes, data_share, find_bottleneck
from compose_sim.core.report.missing import package_hint
from compose_sim.core.report.report import (
    Cause,
    DriverReport,
    FaultReport,
    HorovodTimeline,
    NodeReport,
    RecoveryReport,
    Report,
    RoundReport,
    TestedRange,
    Timings,
    published_services,
)
from compose_sim.core.report.tracebacks import raised_at
from compose_sim.core.state.progress import phase_of
from compose_sim.core.state.state import GAP, ClusterState, Failure, NodeState
from compose_sim.core.text import format_bytes, format_seconds
from compose_sim.core.verdict.verdict import judge


def make_report(
    plan: Plan,
    state: ClusterState,
    *,
    outputs: Mapping[str, str] | None = None,
    timeline: HorovodTimeline | None = None,
    times: tuple[RankTimes, ...] = (),
) -> Report:
    """Return the report of a run that is over, without checks. `outputs` holds the last lines of nodes that started no rank.

    `times` are those that ranks recorded.
    """
    verdict, driver = judge(state, outputs), state.driver
    return Report(
        run=plan.run,
        engine=plan.engine,
        image=plan.image,
        recipe=plan.recipe,
        verdict=verdict.word,
        exit_code=verdict.exit_code,
        cause=_cause(verdict.cause, plan) if verdict.cause else None,
        world_size=plan.world_size,
        # An elastic run may not have needed all nodes.
        nodes=tuple(
            _node(node, state)
            for node in plan.nodes
            if node.name in state.wanted or state.nodes[node.name].attempts > 0
        ),
        timings=_timings(state),
        faults=fault_reports(state),
        rounds=round_reports(state),
        recoveries=recovery_reports(state),
        links=state.links,
        elastic=plan.elastic,
        metrics=state.metrics,
        bottleneck=_bottleneck(plan, state, times),
        rank_times=times,
        restarts=state.restarts,
        notes=state.notes,
        driver=DriverReport(exit_code=driver.exit_code, step=driver.step, facts=driver.facts) if driver else None,
        timeline=timeline,
        published=published_services(plan, host=str(state.host.get("host", ""))),
        program=plan.program,
        backend=plan.backend,
        launcher=plan.launcher,
        versions={**state.versions, **state.host},
        torch_range=_torch_range(state),
        choices=plan.choices,
    )


def _cause(failure: Failure, plan: Plan) -> Cause:
    hint = package_hint(failure.message, plan)
    return Cause(
        node=failure.node,
        rank=failure.rank,
        kind=failure.kind,
        message=failure.message,
        place=raised_at(failure.traceback) if failure.kind in ("exception", GAP) else None,
        traceback="\n".join(filter(None, (failure.traceback, hint))) or None,
    )


def _torch_range(state: ClusterState) -> TestedRange | None:
    found = torch_range(str(state.versions.get("torch", "")))
    return None if found == "unknown" else found


def _bottleneck(plan: Plan, state: ClusterState, times: tuple[RankTimes, ...]) -> Bottleneck | None:
    trained = [node for node in plan.nodes if state.nodes[node.name].load.seconds]
    machine = float(state.host.get("cpus") or 0) or None
    limits = [node.cpus for node in trained if node.cpus]
    cpus = min(sum(limits), machine or sum(limits)) if trained and len(limits) == len(trained) else machine
    loads = [state.nodes[node.name].load for node in trained]
    return find_bottleneck(loads, cpus=cpus, data_share=data_share(times)) if cpus else None


def _node(planned: PlannedNode, state: ClusterState) -> NodeReport:
    node = state.nodes[planned.name]
    usage = node.usage
    return NodeReport(
        name=planned.name,
        ranks=tuple(planned.ranks),
        gpus=tuple(planned.gpus.uuids) if planned.gpus else (),
        exit_code=node.exit_code,
        attempts=node.attempts,
        steps=node.steps,
        cpu_seconds=round(usage.cpu_seconds, 2) if usage else None,
        peak_memory_bytes=usage.peak_memory_bytes if usage else None,
        peak_gpu_memory_bytes=usage.peak_gpu_memory_bytes if usage else None,
        received_bytes=usage.received_bytes if usage else None,
        sent_bytes=usage.sent_bytes if usage else None,
    )


def _timings(state: ClusterState) -> Timings:
    start = state.started_at
    return Timings(
        started_at=start,
        create_s=seconds_between(start, state.first_node_at),
        rendezvous_s=seconds_between(start, state.rendezvous_at),
        ready_s=seconds_between(start, state.driver.ready_at if state.driver else None),
        first_step_s=seconds_between(start, state.first_step_at),
        total_s=seconds_between(start, state.last_t),
    )


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


HEADER = ("node", "state", "CPU", "CPU time", "memory", "of", "peak", "received", "sent")
GPU_HEADER = ("GPU", "GPU memory")  # of whole GPUs, including other users
_UNKNOWN = "–"
_SIZES = ("memory_bytes", "memory_limit_bytes", "peak_memory_bytes", "received_bytes", "sent_bytes")
_AS_MEASURED = (*_SIZES, "gpu_use", "gpu_memory_bytes", "peak_gpu_memory_bytes")
_OF_NOW = ("memory_bytes", "gpu_use", "gpu_memory_bytes")  # unknown once the node has gone


def usage_table(state: ClusterState) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the header and one row per node; the columns for GPUs only if any node has one."""
    has_gpus = any(node.usage and node.usage.gpu_memory_bytes is not None for node in state.nodes.values())
    rows = [_row(node, phase_of(state, node.name), with_gpus=has_gpus) for node in state.nodes.values()]
    return HEADER + (GPU_HEADER if has_gpus else ()), rows


def usage_values(state: ClusterState) -> list[dict[str, Any]]:
    """Return the same as JSON values; sizes are in bytes, and unknown values are null."""
    return [_values(node, phase_of(state, node.name)) for node in state.nodes.values()]


def _row(node: NodeState, phase: str, *, with_gpus: bool) -> tuple[str, ...]:
    values = _values(node, phase)
    use, gpu_memory = values["gpu_use"], values["gpu_memory_bytes"]
    gpus = (
        _UNKNOWN if use is None else f"{use:.0%}",
        _UNKNOWN if gpu_memory is None else format_bytes(gpu_memory),
    )
    cpus, seconds = values["cpus"], values["cpu_seconds"]
    return (
        node.name,
        phase,
        _UNKNOWN if cpus is None else f"{cpus:.0%}",
        _UNKNOWN if seconds is None else format_seconds(seconds),
        *(_UNKNOWN if values[key] is None else format_bytes(values[key]) for key in _SIZES),
        *(gpus if with_gpus else ()),
    )


def _values(node: NodeState, phase: str) -> dict[str, Any]:
    usage, now = node.usage, None if node.is_gone else node.usage
    return {
        "node": node.name,
        "state": phase,
        "cpus": round(now.cpus, 3) if now and now.cpus is not None else None,
        "cpu_seconds": round(usage.cpu_seconds, 2) if usage else None,
        **{name: getattr(now if name in _OF_NOW else usage, name, None) for name in _AS_MEASURED},
    }
