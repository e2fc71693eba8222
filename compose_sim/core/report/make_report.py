"""Make the report of a run from the plan and the last state. Every command gets the report from here, even after a crash."""

from __future__ import annotations

from collections.abc import Mapping

from compose_sim.core.host.torch_versions import torch_range
from compose_sim.core.plan.model import Plan, PlannedNode
from compose_sim.core.report.bottleneck import Bottleneck, find_bottleneck
from compose_sim.core.report.history import fault_reports, recovery_reports, round_reports, seconds_between
from compose_sim.core.report.horovod_timeline import HorovodTimeline
from compose_sim.core.report.rank_times import RankTimes, data_share
from compose_sim.core.report.report import Cause, DriverReport, NodeReport, Report, TestedRange, Timings
from compose_sim.core.report.service_links import published_services
from compose_sim.core.state.state import ClusterState, Failure
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
        cause=_cause(verdict.cause) if verdict.cause else None,
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


def _cause(failure: Failure) -> Cause:
    return Cause(
        node=failure.node,
        rank=failure.rank,
        kind=failure.kind,
        message=failure.message,
        traceback=failure.traceback or None,
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
