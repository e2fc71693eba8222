"""Find the processes of runs of the local engine, and signal exactly those.

Labels are environment variables, which child processes inherit and the kernel shows in /proc. So a process that left its
session or lost its parent is still found, from any shell.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from compose_sim.errors import EngineError
from compose_sim.node.shared.process import environment_of

ENGINE = "COMPOSESIM_ENGINE"  # "local": processes in containers have the other labels too
RUN = "COMPOSESIM_RUN"
NODE = "COMPOSESIM_NODE"
FOLDER = "COMPOSESIM_DIR"
INIT = "init"  # the node of a run's init process, which ends all of its descendants
AGENT = "COMPOSESIM_AGENT_PID"  # set to the id of the node's first process, and inherited by the others
_TICKS = os.sysconf("SC_CLK_TCK")
_KILL_TIMEOUT_S = 30.0  # only a process that is stuck in the kernel survives SIGKILL for this long


@dataclass(frozen=True, slots=True, kw_only=True)
class LabeledProcess:
    """A process of a run. `node` is empty if the process serves all nodes."""

    pid: int
    run: str
    node: str
    folder: str
    is_agent: bool


def labeled_processes(run: str | None = None) -> list[LabeledProcess]:
    """Return all live processes of a run, or of all runs, that this user can see."""
    pids = (int(entry.name) for entry in os.scandir("/proc") if entry.name.isdecimal())
    return [process for process in map(read_labels, pids) if process and run in (None, process.run)]


def processes_of_node(run: str, node: str) -> list[LabeledProcess]:
    """Return the processes labeled with a node, and their descendants: a rank may be forked from a process without a node."""
    processes = labeled_processes(run)
    found = {process.pid: process for process in processes if process.node == node}
    parents = {process.pid: int(_stat(process.pid)[1]) for process in processes}
    while new := [each for each in processes if each.pid not in found and parents[each.pid] in found]:
        found |= {process.pid: process for process in new}
    return list(found.values())


def agent_of(run: str, node: str) -> LabeledProcess | None:
    """Return a node's first process, or None if it is not running."""
    return next((each for each in labeled_processes(run) if each.is_agent and each.node == node), None)


def without_ancestors(processes: Iterable[LabeledProcess]) -> list[LabeledProcess]:
    """Leave out this process and its ancestors: composesim may itself run inside a node."""
    lineage, pid = set(), os.getpid()
    while pid:
        lineage.add(pid)
        pid = int(_stat(pid)[1])
    return [process for process in processes if process.pid not in lineage]


def send_signal(process: LabeledProcess, number: signal.Signals) -> None:
    """Signal this process, and never another one that has reused the id."""
    handle = open_process(process)
    if handle is None:
        return
    try:
        signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return  # it has just exited
    finally:
        os.close(handle)


def kill_until_gone(find: Callable[[], Iterable[LabeledProcess]], *, owner: str, hint: str) -> None:
    """Send SIGKILL until `find` returns nothing: a process may have been forking. Init processes end their descendants first."""
    deadline = time.monotonic() + _KILL_TIMEOUT_S
    while processes := without_ancestors(find()):
        if time.monotonic() > deadline:
            raise EngineError(
                f"{len(processes)} processes of {owner} did not exit within {_KILL_TIMEOUT_S:.0f} s of SIGKILL",
                evidence="\n".join(f"process {process.pid} {process.node}" for process in processes),
                hint=hint,
            )
        for process in processes:
            send_signal(process, signal.SIGTERM if process.node == INIT else signal.SIGKILL)
            send_signal(process, signal.SIGCONT)
        wait_until_gone(processes, seconds=1.0)


def wait_until_gone(processes: Iterable[LabeledProcess], *, seconds: float) -> None:
    """Return when all of these have exited, or at the timeout."""
    deadline = time.monotonic() + seconds
    for process in processes:
        handle = open_process(process)
        if handle is not None:
            select.select([handle], [], [], max(0.0, deadline - time.monotonic()))
            os.close(handle)


def is_paused(pid: int) -> bool:
    """Return whether the process is stopped by a signal."""
    return _stat(pid)[0] == "T"


def started_at(pid: int) -> str:
    """Return when the process was forked, in ISO 8601."""
    seconds_after_boot = int(_stat(pid)[19]) / _TICKS
    moment = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + seconds_after_boot
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="milliseconds")


def read_labels(pid: int) -> LabeledProcess | None:
    """Return the process of this id; None if it has exited, is none of a run, or belongs to another user."""
    environment = environment_of(pid)
    if environment.get(ENGINE) != "local" or RUN not in environment or not _is_ours(pid):
        return None
    return LabeledProcess(
        pid=pid,
        run=environment[RUN],
        node=environment.get(NODE, ""),
        folder=environment.get(FOLDER, ""),
        is_agent=environment.get(AGENT) == str(pid),
    )


def _is_ours(pid: int) -> bool:
    """Return whether this user started a process: root can read the variables of all users, who can set any labels."""
    if os.geteuid() != 0:
        return True
    try:
        # The owner of the folder /proc/PID is root for a process that forbids core dumps.
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    except OSError:  # it is gone
        return False
    return any(line.split()[:2] == ["Uid:", "0"] for line in lines)


def open_process(process: LabeledProcess) -> int | None:
    """Return a pidfd for the process, or None if it has exited."""
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return None
    if read_labels(process.pid) == process:
        return handle
    os.close(handle)
    return None


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the process's name: state, parent, …; state X if it has exited."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ["X", *["0"] * 49]
