"""What is done to one node of the local engine that is under way? Signals, to all of its processes or to its agent."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from pathlib import Path

from compose_sim.core.faults import Act, Pause, Signal
from compose_sim.core.plan.model import short_folder
from compose_sim.engine.local import process_labels
from compose_sim.errors import EngineError

_PATIENCE_S = 30.0  # only a process that the kernel itself holds survives SIGKILL so long


def agent_of(run: str, node: str) -> process_labels.Labelled | None:
    """The node's first process; None where it does not run."""
    processes = process_labels.labelled_processes(run)
    return next((process for process in processes if process.is_agent and process.node == node), None)


def perform(run: str, act: Act) -> None:
    """Do it to the node; EngineError where that cannot be."""
    if isinstance(act, Pause):
        _hold(run, act.node) if act.on else _let_go(run, act.node)
    elif isinstance(act, Signal) and act.name == "STOP":
        _hold(run, act.node)
    elif isinstance(act, Signal) and act.name == "CONT":
        _let_go(run, act.node)
    elif isinstance(act, Signal) and act.name == "KILL":
        _kill(run, act.node)
    elif isinstance(act, Signal):
        agent = agent_of(run, act.node)
        if agent:
            process_labels.send(agent, signal.Signals[f"SIG{act.name}"])
    else:
        raise EngineError(f"the local engine cannot do {act!r}", hint="composesim up --engine docker …")


def _hold(run: str, node: str) -> None:
    """Stop the agent first, then its ranks, until nothing moves: one may have been forking."""
    held: set[int] = set()
    while new := [process for process in process_labels.processes_of_node(run, node) if process.pid not in held]:
        for process in sorted(process_labels.without_kin(new), key=lambda each: not each.is_agent):
            process_labels.send(process, signal.SIGSTOP)
        held |= {process.pid for process in new}


def _let_go(run: str, node: str) -> None:
    for process in process_labels.processes_of_node(run, node):
        process_labels.send(process, signal.SIGCONT)


def _kill(run: str, node: str) -> None:
    """SIGKILL to all at once, ranks that the agent's end would leave for a moment too."""
    deadline = time.monotonic() + _PATIENCE_S
    while left := process_labels.without_kin(process_labels.processes_of_node(run, node)):
        if time.monotonic() > deadline:
            raise EngineError(f"{len(left)} processes of {node} do not end on SIGKILL", hint="composesim prune")
        for process in left:
            process_labels.send(process, signal.SIGKILL)
        process_labels.wait_until_gone(left, seconds=1.0)


def remove_sockets(run: str) -> None:
    """What processes of the run kept in /tmp, if that folder is ours: its name could be anybody's."""
    folder = Path(short_folder(run))
    with contextlib.suppress(FileNotFoundError):
        if folder.lstat().st_uid == os.geteuid():
            shutil.rmtree(folder, ignore_errors=True)
