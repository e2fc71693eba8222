"""Which processes of this machine belong to a run of the local engine, and how does one signal exactly those?

The labels of a process are environment variables, which its children inherit and the kernel shows in /proc. A process that
left its session or lost its parent is therefore still found, from any shell.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

ENGINE = "COMPOSESIM_ENGINE"  # "local": what runs in containers has the other labels too
RUN = "COMPOSESIM_RUN"
NODE = "COMPOSESIM_NODE"
FOLDER = "COMPOSESIM_DIR"
AGENT = "COMPOSESIM_AGENT_PID"  # the node's first process: the only one whose own process id this is
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class Labelled:
    """A process of a run. One that serves all nodes names none."""

    pid: int
    run: str
    node: str
    folder: str
    is_agent: bool


def labelled_processes(run: str | None = None) -> list[Labelled]:
    """All live processes of a run, or of all runs, that this user may see."""
    pids = (int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit())
    return [process for process in map(_labels, pids) if process and run in (None, process.run)]


def without_kin(processes: Iterable[Labelled]) -> list[Labelled]:
    """Those that are neither this process nor one that it descends from: composesim may itself run inside a node."""
    kin, pid = set(), os.getpid()
    while pid:
        kin.add(pid)
        pid = int(_stat(pid)[1])
    return [process for process in processes if process.pid not in kin]


def processes_of_node(run: str, node: str) -> list[Labelled]:
    """A node's processes: what has its name, and what descends from that. A rank may be forked from one that serves all nodes."""
    processes = labelled_processes(run)
    found = {process.pid: process for process in processes if process.node == node}
    parents = {process.pid: int(_stat(process.pid)[1]) for process in processes}
    while new := [each for each in processes if each.pid not in found and parents[each.pid] in found]:
        found |= {process.pid: process for process in new}
    return list(found.values())


def send(process: Labelled, number: signal.Signals) -> None:
    """Signal this process, and never another one that took over its id."""
    handle = _open(process)
    if handle is None:
        return
    try:
        signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return  # it ended in between
    finally:
        os.close(handle)


def wait_until_gone(processes: Iterable[Labelled], *, seconds: float) -> None:
    """Return when all have ended, or after so many seconds."""
    deadline = time.monotonic() + seconds
    for process in processes:
        handle = _open(process)
        if handle is not None:
            select.select([handle], [], [], max(0.0, deadline - time.monotonic()))
            os.close(handle)


def environment_of(pid: int) -> Mapping[str, str]:
    """What a process was started with; empty once it has ended, or where it is another user's."""
    try:
        block = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return {}
    return dict(os.fsdecode(entry).split("=", 1) for entry in block.split(b"\0") if b"=" in entry)


def is_paused(pid: int) -> bool:
    """Whether a SIGSTOP holds the process."""
    return _stat(pid)[0] == "T"


def started_at(pid: int) -> str:
    """When the process was forked, in the words of ISO 8601."""
    seconds_after_boot = int(_stat(pid)[19]) / _TICKS
    moment = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + seconds_after_boot
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="milliseconds")


def _labels(pid: int) -> Labelled | None:
    environment = environment_of(pid)
    if environment.get(ENGINE) != "local" or RUN not in environment:
        return None
    return Labelled(
        pid=pid,
        run=environment[RUN],
        node=environment.get(NODE, ""),
        folder=environment.get(FOLDER, ""),
        is_agent=environment.get(AGENT) == str(pid),
    )


def _open(process: Labelled) -> int | None:
    """A handle on the process, None once it has ended."""
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return None
    if _labels(process.pid) == process:
        return handle
    os.close(handle)
    return None


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat behind the process's name: state, parent, …; as if paused nowhere, once it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ["X", *["0"] * 49]
