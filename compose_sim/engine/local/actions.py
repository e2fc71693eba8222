"""Perform acts on one node of the local engine: signals to the agent or to all processes; and stop NVIDIA MPS."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from compose_sim.core.plan.gpus.gpu_plan import MPS_NAME
from compose_sim.engine.local.process_labels import (
    agent_of,
    kill_until_gone,
    processes_of_node,
    send_signal,
    wait_until_gone,
    without_ancestors,
)
from compose_sim.errors import EngineError

if TYPE_CHECKING:
    from compose_sim.core.faults.kind import Action

_MPS_GRACE_S = 6.0  # the daemon gives clients 2 s


def perform(run: str, act: Action) -> None:
    """Perform the act on the node; raise EngineError if that fails."""
    from compose_sim.core.faults.kind import Pause, Signal

    if isinstance(act, Pause):
        _pause(run, act.node) if act.on else _resume(run, act.node)
    elif isinstance(act, Signal) and act.name == "STOP":
        _pause(run, act.node)
    elif isinstance(act, Signal) and act.name == "CONT":
        _resume(run, act.node)
    elif isinstance(act, Signal) and act.name == "KILL":
        kill_until_gone(lambda: processes_of_node(run, act.node), owner=act.node, hint="composesim prune")
    elif isinstance(act, Signal):
        agent = agent_of(run, act.node)
        if agent:
            send_signal(agent, signal.Signals[f"SIG{act.name}"])
    else:
        raise EngineError(f"the local engine cannot perform {act!r}", hint="composesim up --engine docker …")


def stop_mps(run: str) -> None:
    """Ask MPS to exit, if the run has one, and wait: this releases the GPU properly."""
    if process := agent_of(run, MPS_NAME):
        send_signal(process, signal.SIGTERM)
        wait_until_gone([process], seconds=_MPS_GRACE_S)


def _pause(run: str, node: str) -> None:
    """Stop the agent first, then the ranks, until no new process appears: one may have been forking."""
    paused: set[int] = set()
    while new := [process for process in processes_of_node(run, node) if process.pid not in paused]:
        for process in sorted(without_ancestors(new), key=lambda each: not each.is_agent):
            send_signal(process, signal.SIGSTOP)
        paused |= {process.pid for process in new}


def _resume(run: str, node: str) -> None:
    for process in processes_of_node(run, node):
        send_signal(process, signal.SIGCONT)
