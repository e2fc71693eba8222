"""How does a run of plain processes come by MPS? One more process beside the nodes, which is asked to end before all are killed."""

from __future__ import annotations

import signal
from collections.abc import Mapping

from compose_sim.core.plan.gpus.gpu_plan import MPS_NAME
from compose_sim.core.plan.model import Plan
from compose_sim.engine.local import process_labels
from compose_sim.engine.local.zygote import Zygote

_GRACE_S = 6.0  # its daemon gives clients 2 s


def start_mps(zygote: Zygote, plan: Plan, environment: Mapping[str, str]) -> int | None:
    """Start the run's MPS, if it is to have one; its process id. Nodes wait for it themselves."""
    if not plan.mps:
        return None
    return zygote.start(MPS_NAME, plan.mps.command, {**environment, **plan.mps.environment})


def stop_mps(run: str) -> None:
    """Ask it to end, and wait until it has: its servers are let go of in order. Nothing where there is none."""
    processes = [each for each in process_labels.labelled_processes(run) if each.is_agent and each.node == MPS_NAME]
    for process in processes:
        process_labels.send(process, signal.SIGTERM)
    process_labels.wait_until_gone(processes, seconds=_GRACE_S)
