"""Start and stop NVIDIA MPS for a run of plain processes, as one more process beside the nodes."""

from __future__ import annotations

import signal
from collections.abc import Mapping

from compose_sim.core.plan.gpus.gpu_plan import MPS_NAME
from compose_sim.core.plan.model import Plan
from compose_sim.engine.local.process_labels import agent_of, send_signal, wait_until_gone
from compose_sim.engine.local.zygote import Zygote

_GRACE_S = 6.0  # the daemon gives clients 2 s


def start_mps(zygote: Zygote, plan: Plan, environment: Mapping[str, str]) -> int | None:
    """Start MPS if the plan uses it, and return its process id. Nodes themselves wait until it is ready."""
    if not plan.mps:
        return None
    return zygote.start(MPS_NAME, plan.mps.command, {**environment, **plan.mps.environment})


def stop_mps(run: str) -> None:
    """Ask MPS to exit, if the run has one, and wait: this releases the GPU properly."""
    process = agent_of(run, MPS_NAME)
    if process:
        send_signal(process, signal.SIGTERM)
        wait_until_gone([process], seconds=_GRACE_S)
