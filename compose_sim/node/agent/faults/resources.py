"""Exhaust a resource of the node: memory, scratch disk or processes. Refused if the host would be affected."""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections.abc import Generator
from pathlib import Path

from ...shared.fault_note import CommandName
from .. import usage
from .command import (
    POLL_SECONDS,
    SETTLE_POLLS,
    TIMEOUT_SECONDS,
    Command,
    CommandHandler,
    ExecutionError,
    NodeContext,
    wait_until,
)

_PREFERRED_VICTIM = "1000"  # the highest score of /proc/PID/oom_score_adj
_RESERVED_FOR_HOST = 256 << 20
_PAGE = 4096
_MAX_THREADS = 16384  # each takes some kernel memory


def _exhaust_memory(command: Command, node: NodeContext) -> Generator[float, None, None]:
    """
    Start a balloon that grows until the kernel kills a process of the node, then release it at once.

    Ranks are marked as preferred victims, because they normally exhaust a node's memory.
    """
    limit = _memory_limit(node)
    kills = usage.out_of_memory_kills()
    ranks = [rank.pid for rank in node.ranks if rank.pid and not rank.ended]
    scores = {rank: _set_oom_score(rank, _PREFERRED_VICTIM) for rank in ranks}
    node.start(command, "balloon", "memory", str(limit))
    try:
        yield from wait_until(
            lambda: usage.out_of_memory_kills() != kills,
            f"the memory limit of {limit >> 20} MiB was not reached within {TIMEOUT_SECONDS:g} s",
            deadline=time.monotonic() + TIMEOUT_SECONDS,
        )
    finally:
        node.end(command)
        for rank, score in scores.items():
            _set_oom_score(rank, score)


def _memory_limit(node: NodeContext) -> int:
    """Return the node's limit; ExecutionError if a balloon of that size would endanger the host."""
    sample = usage.sample(os.getpid(), contained=True) if node.contained else {}
    limit, used = sample.get("memory_limit_bytes"), sample.get("memory_bytes")
    if not limit:
        raise ExecutionError("the node has no memory limit, so this would exhaust the memory of the host")
    room, free = int(limit - (used or 0)), _available_on_host()
    if room > free - _RESERVED_FOR_HOST:
        raise ExecutionError(
            f"the node can allocate another {room >> 20} MiB, but the host has only {free >> 20} MiB left"
        )
    return int(limit)


def _set_oom_score(process: int, score: str) -> str:
    """Set how early the kernel kills a process, and return the previous value."""
    file = Path(f"/proc/{process}/oom_score_adj")
    try:
        before = file.read_text()
        file.write_text(score)
    except OSError:  # it has ended
        return score
    return before


def _available_on_host() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))


def _fill_disk(command: Command, node: NodeContext) -> Generator[float, None, None]:
    """Allocate all that is left of `--scratch`, a file system in the node's memory."""
    scratch = os.environ.get("COMPOSESIM_SCRATCH")
    if not (scratch and node.contained and os.path.ismount(scratch)):
        raise ExecutionError("the node has no --scratch disk, so this would fill the disk of the host")
    file = os.open(_filler(scratch, command), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        size = 0
        for _ in range(SETTLE_POLLS):
            size = _grow(file, size, _PAGE * os.statvfs(scratch).f_blocks)
            yield POLL_SECONDS
    finally:
        os.close(file)


def _grow(file: int, size: int, chunk: int) -> int:
    """Allocate until nothing is left, and return the new size of the file."""
    while chunk >= _PAGE:
        try:
            os.posix_fallocate(file, size, chunk)
        except OSError:  # less than that is left
            chunk //= 2
        else:
            size += chunk
    return size


def _empty_disk(command: Command, node: NodeContext) -> None:
    scratch = os.environ.get("COMPOSESIM_SCRATCH")
    if scratch:
        with contextlib.suppress(FileNotFoundError):  # the container was started again
            _filler(scratch, command).unlink()


def _filler(scratch: str, command: Command) -> Path:
    return Path(scratch, f".composesim-{command.id}")


def _exhaust_processes(command: Command, node: NodeContext) -> Generator[float, None, None]:
    """Start a process that takes as many threads as the control group of the node allows."""
    limit = usage.process_limit() if node.contained else None
    if limit is None or limit > _MAX_THREADS:
        raise ExecutionError("the node has no process limit, so this would exhaust the processes of the host")
    process, deadline = node.start(command, "balloon", "threads", str(limit)), time.monotonic() + TIMEOUT_SECONDS
    output = process.stdout
    assert output is not None
    try:
        yield from wait_until(
            lambda: select.select([output], [], [], 0)[0],
            f"{limit} threads could not be started within {TIMEOUT_SECONDS:g} s",
            deadline=deadline,
        )
        if process.poll() is not None:
            raise ExecutionError("the process that was to take all others ended")
    except ExecutionError:
        node.end(command)
        raise


def _end_process(command: Command, node: NodeContext) -> None:
    node.end(command)


HANDLERS: dict[CommandName, CommandHandler] = {
    "memory": CommandHandler(_exhaust_memory, _end_process),
    "disk_full": CommandHandler(_fill_disk, _empty_disk),
    "processes_full": CommandHandler(_exhaust_processes, _end_process),
}
