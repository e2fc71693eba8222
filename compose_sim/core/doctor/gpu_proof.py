"""Do the GPUs of a run do what the plan says? The findings of `doctor --gpu`, from what a run of `templates/bench/gpu.py` told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from compose_sim.core.doctor.machine_checks import Check
from compose_sim.core.doctor.nccl_log import NcclWords
from compose_sim.core.plan.model import Plan
from compose_sim.core.report.report import Report


def findings(plan: Plan, report: Report, words: NcclWords) -> tuple[Check, ...]:
    """What was proved, in the order in which it builds up; where the run did not pass, why."""
    metrics = report.metrics
    if report.verdict != "passed" or "ranks" not in metrics:
        detail = report.cause.first_line if report.cause else f"the run {report.verdict}"
        return (Check(id="run", status="failed", detail=detail, hint=f"composesim report --run {plan.run}"),)
    return (_uuids(plan, metrics["ranks"]), _mps(plan, metrics["ranks"]), _transport(words), _speed(metrics))


def _uuids(plan: Plan, ranks: list[dict[str, Any]]) -> Check:
    planned = {node.name: sorted(_bare(uuid) for uuid in node.gpus.uuids) for node in plan.nodes if node.gpus}
    wrong = [rank["node"] for rank in ranks if sorted(rank["uuids"]) != planned.get(rank["node"], [])]
    if wrong or len(ranks) != plan.world_size:
        detail = f"ranks of {', '.join(wrong) or 'some nodes'} did not see what was planned"
        return Check(id="uuids", status="failed", detail=detail, hint=f"composesim report --run {plan.run}")
    gpus = {uuid for uuids in planned.values() for uuid in uuids}
    if not gpus:
        return Check(id="uuids", status="failed", detail="no node was given a GPU", hint="composesim plan")
    what = "the GPU that was planned" if len(gpus) == 1 else f"those of {len(gpus)} GPUs that were planned"
    return Check(id="uuids", status="passed", detail=f"each of {len(ranks)} ranks sees {what}, by UUID")


def _mps(plan: Plan, ranks: list[dict[str, Any]]) -> Check:
    joined = {node.name for node in plan.nodes if node.joins_mps}
    clients = [rank for rank in ranks if rank["node"] in joined]
    if not joined:
        detail = "ranks share a GPU by turns" if _is_shared(plan) else "no GPU is shared"
        return Check(id="mps", status="warned" if _is_shared(plan) else "passed", detail=f"{detail}: MPS is not used")
    if any(rank["mps"] is None for rank in clients):
        detail = f"{len(clients)} ranks are to use MPS; this driver does not tell whether they do"
        return Check(id="mps", status="warned", detail=detail, hint="a driver for CUDA 12.4 or newer tells")
    using = sum(bool(rank["mps"]) for rank in clients)
    status = "passed" if using == len(clients) else "failed"
    detail = f"{using} of {len(clients)} ranks reach their GPU through MPS"
    return Check(
        id="mps", status=status, detail=detail, hint="" if status == "passed" else "composesim logs --node mps"
    )


def _is_shared(plan: Plan) -> bool:
    uuids = [uuid for node in plan.nodes if node.gpus for uuid in node.gpus.uuids]
    return len(set(uuids)) < len(uuids)


def _transport(words: NcclWords) -> Check:
    version = f"NCCL {words.version}" if words.version else "NCCL"
    if not words.transports:
        return Check(id="transport", status="warned", detail=f"{version} did not say which transport it took")
    taken = ", ".join(words.transports)
    over = f" on {words.interface}" if words.interface else ""
    nodes = f"; it takes this machine for {words.nodes} hosts" if words.nodes else ""
    detail = f"{version} between ranks: {taken}{over}{nodes}"
    if words.nodes and words.nodes > 1 and not any(each.startswith("NET/") for each in words.transports):
        return Check(id="transport", status="failed", detail=f"{detail}, yet nothing went over the network")
    return Check(id="transport", status="passed", detail=f"{detail}. NVLink between nodes is not simulated")


def _speed(metrics: Mapping[str, Any]) -> Check:
    size = metrics["all_reduce_bytes"] >> 20
    return Check(
        id="speed",
        status="passed",
        detail=(
            f"all-reduce of {size} MiB in {metrics['all_reduce_ms']:.1f} ms ({metrics['bus_gigabytes_per_s']:.2f} GB/s), "
            f"of 8 bytes in {metrics['latency_us']:.0f} µs; a DDP step in {metrics['step_ms']:.2f} ms"
        ),
    )


def _bare(uuid: str) -> str:
    return uuid.partition("-")[2].lower()
