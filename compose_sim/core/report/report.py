"""What was the run worth? The report: verdict, cause, nodes, timings and versions, as one JSON value with a fixed schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from compose_sim.core.plan.model import Plan, PlannedNode
from compose_sim.core.report.history import fault_values, recovery_values, round_values
from compose_sim.core.report.service_links import published_values
from compose_sim.core.state.bottleneck import find_bottleneck
from compose_sim.core.state.state import ClusterState, Failure
from compose_sim.core.verdict.verdict import Verdict, judge

SCHEMA_VERSION = 1


def make_report(
    plan: Plan,
    state: ClusterState,
    *,
    host: Mapping[str, Any],
    outputs: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The report of a run that is over; `host` names the machine and the engine."""
    verdict = judge(state, outputs)
    return {
        "schema_version": SCHEMA_VERSION,
        "run": plan.run,
        "engine": plan.engine,
        "image": plan.image,
        "recipe": plan.recipe,
        "verdict": verdict.word,
        "exit_code": verdict.exit_code,
        "cause": _cause(verdict),
        "world_size": plan.world_size,
        "nodes": [_node(plan_node, state) for plan_node in plan.nodes if _took_part(plan_node.name, state)],
        "timings": _timings(state),
        "checks": [],
        "faults": fault_values(state),
        "rounds": round_values(state),
        "recoveries": recovery_values(state),
        "links": list(state.links),
        "elastic": list(plan.elastic) if plan.elastic else None,
        "metrics": dict(state.metrics),
        "bottleneck": _bottleneck(plan, state, host),
        "restarts": state.restarts,
        "driver": _driver(state),
        "published": published_values(plan, host=str(host.get("host", ""))),
        "program": plan.program,
        "backend": plan.backend,
        "launcher": plan.launcher,
        "versions": {**state.versions, **host},
        "choices": [{"what": choice.what, "value": choice.value, "why": choice.why} for choice in plan.choices],
    }


def _cause(verdict: Verdict) -> dict[str, Any] | None:
    failure: Failure | None = verdict.cause
    if failure is None:
        return None
    return {
        "node": failure.node,
        "rank": failure.rank,
        "kind": failure.kind,
        "message": failure.message,
        "traceback": failure.traceback or None,
    }


def _driver(state: ClusterState) -> dict[str, Any] | None:
    if not state.driver:
        return None
    return {"exit_code": state.driver.exit_code, "step": state.driver.step, "facts": dict(state.driver.facts)}


def _bottleneck(plan: Plan, state: ClusterState, host: Mapping[str, Any]) -> dict[str, str] | None:
    trained = [node for node in plan.nodes if state.nodes[node.name].load.seconds]
    machine = float(host.get("cpus") or 0) or None
    limits = [node.cpus for node in trained if node.cpus]
    cpus = min(sum(limits), machine or sum(limits)) if trained and len(limits) == len(trained) else machine
    found = find_bottleneck([state.nodes[node.name].load for node in trained], cpus=cpus) if cpus else None
    return {"what": found.what, "why": found.why} if found else None


def _took_part(name: str, state: ClusterState) -> bool:
    """Whether a node was there at all; an elastic run may never have needed it."""
    return name in state.wanted or state.nodes[name].attempts > 0


def _node(planned: PlannedNode, state: ClusterState) -> dict[str, Any]:
    node = state.nodes[planned.name]
    usage = node.usage
    return {
        "name": planned.name,
        "ranks": list(planned.ranks),
        "gpus": list(planned.gpus.uuids) if planned.gpus else [],
        "exit_code": node.exit_code,
        "attempts": node.attempts,
        "steps": node.steps,
        "cpu_seconds": round(usage.cpu_seconds, 2) if usage else None,
        "peak_memory_bytes": usage.peak_memory_bytes if usage else None,
        "peak_gpu_memory_bytes": usage.peak_gpu_memory_bytes if usage else None,
        "received_bytes": usage.received_bytes if usage else None,
        "sent_bytes": usage.sent_bytes if usage else None,
    }


def _timings(state: ClusterState) -> dict[str, float | None]:
    start = state.started_at

    def since_start(moment: float | None) -> float | None:
        return round(moment - start, 3) if moment is not None and start is not None else None

    return {
        "create_s": since_start(state.first_node_at),
        "rendezvous_s": since_start(state.rendezvous_at),
        "ready_s": since_start(state.driver.ready_at if state.driver else None),
        "first_step_s": since_start(state.first_step_at),
        "total_s": since_start(state.last_t),
    }
