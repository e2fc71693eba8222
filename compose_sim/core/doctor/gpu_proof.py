"""Check that a run used the GPUs as planned, from the output of `templates/bench/gpu.py`: the findings of `doctor --gpu`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from compose_sim.core.doctor.gpu_messages import NcclFacts
from compose_sim.core.doctor.machine_checks import Check
from compose_sim.core.plan.model import Plan
from compose_sim.core.report.report import Report


def findings(plan: Plan, report: Report, nccl: NcclFacts) -> tuple[Check, ...]:
    """Return the findings, each building on the one before; if the run did not pass, only the reason."""
    metrics = report.metrics
    if report.verdict != "passed" or "ranks" not in metrics:
        detail = report.cause.first_line if report.cause else f"the run {report.verdict}"
        return (Check(id="run", status="failed", detail=detail, hint=f"composesim report --run {plan.run}"),)
    return (_uuids(plan, metrics["ranks"]), _mps(plan, metrics["ranks"]), _transport(nccl), _speed(metrics))


def _uuids(plan: Plan, ranks: list[dict[str, Any]]) -> Check:
    planned = {node.name: sorted(_bare(uuid) for uuid in node.gpus.uuids) for node in plan.nodes if node.gpus}
    wrong = [rank["node"] for rank in ranks if sorted(rank["uuids"]) != planned.get(rank["node"], [])]
    if wrong or len(ranks) != plan.world_size:
        detail = f"ranks of {', '.join(wrong) or 'some nodes'} did not see the planned GPUs"
        return Check(id="uuids", status="failed", detail=detail, hint=f"composesim report --run {plan.run}")
    gpus = {uuid for uuids in planned.values() for uuid in uuids}
    if not gpus:
        return Check(id="uuids", status="failed", detail="the plan gives no node a GPU", hint="composesim plan")
    what = "the planned GPU" if len(gpus) == 1 else f"the GPUs that were planned for it, of {len(gpus)}"
    return Check(id="uuids", status="passed", detail=f"each of {len(ranks)} ranks sees {what}, by UUID")


def _mps(plan: Plan, ranks: list[dict[str, Any]]) -> Check:
    joined = {node.name for node in plan.nodes if node.joins_mps}
    clients = [rank for rank in ranks if rank["node"] in joined]
    if not joined:
        detail = "ranks share a GPU by time-slicing" if _is_shared(plan) else "no GPU is shared"
        return Check(id="mps", status="warned" if _is_shared(plan) else "passed", detail=f"{detail}: MPS is not used")
    if any(rank["mps"] is None for rank in clients):
        detail = f"{len(clients)} ranks should use MPS, but this driver does not report whether they do"
        return Check(id="mps", status="warned", detail=detail, hint="update the driver to one for CUDA 12.4 or newer")
    using = sum(bool(rank["mps"]) for rank in clients)
    status = "passed" if using == len(clients) else "failed"
    detail = f"{using} of {len(clients)} ranks reach their GPU through MPS"
    return Check(
        id="mps", status=status, detail=detail, hint="" if status == "passed" else "composesim logs --node mps"
    )


def _is_shared(plan: Plan) -> bool:
    uuids = [uuid for node in plan.nodes if node.gpus for uuid in node.gpus.uuids]
    return len(set(uuids)) < len(uuids)


def _transport(nccl: NcclFacts) -> Check:
    version = f"NCCL {nccl.version}" if nccl.version else "NCCL"
    if not nccl.transports:
        return Check(id="transport", status="warned", detail=f"{version} did not log which transport it uses")
    taken = ", ".join(nccl.transports)
    over = f" on {nccl.interface}" if nccl.interface else ""
    nodes = f"; it sees {nccl.nodes} hosts" if nccl.nodes else ""
    detail = f"{version} between ranks: {taken}{over}{nodes}"
    if nccl.nodes and nccl.nodes > 1 and not any(each.startswith("NET/") for each in nccl.transports):
        return Check(id="transport", status="failed", detail=f"{detail}, but nothing went over the network")
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
