"""Prove for `doctor --gpu` that nodes get GPUs: run on GPUs, and judge what the run shows."""

from __future__ import annotations

from compose_sim.cli.bench.gpu_run import lines_of_ranks, require_inventory, run_on_gpus
from compose_sim.core.doctor.gpu_proof import findings
from compose_sim.core.doctor.machine_checks import Check
from compose_sim.core.doctor.nccl_log import read_nccl_log

_LEAST_NODES, _MOST_NODES = 2, 8


def prove_gpus(nodes: int | None) -> tuple[Check, ...]:
    """Run and judge; raise EnvironmentMissingError without a GPU. By default there is one node per GPU, and at least two."""
    inventory = require_inventory("doctor --gpu")
    count = nodes or min(max(_LEAST_NODES, len(inventory.gpus)), _MOST_NODES)
    session, report = run_on_gpus("doctor-gpu", inventory, {"nodes": count})
    return findings(session.plan, report, read_nccl_log(lines_of_ranks(session)))
