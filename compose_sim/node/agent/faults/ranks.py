"""Break single ranks: with a real signal, in their own code, or by limiting the number of files that they may open.

Or ask all ranks of the node for a profile of some steps (`rank/observers/profiles.py`), or for where they are and what torch's
flight recorder holds, while they run on.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import time
from collections.abc import Generator, Iterator
from pathlib import Path

from ...shared import fault_note
from ...shared.fault_note import CommandName
from ...shared.progress_page import ProgressPage
from ..stalls.stall_detector import inspect_rank
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

_END_SECONDS = 9.0  # from the beginning of the command to the end of the rank
_ENDS = ("raise", "gpu-error", "exit")


def _signal(command: Command, node: NodeContext) -> Generator[float, None, None]:
    """Send the signal `values["signal"]` to the rank, and wait a while for it to end."""
    number = signal.Signals[f"SIG{command.values['signal']}"]
    began = time.monotonic()
    rank = yield from node.running_rank(command)
    node.held[command.id] = rank
    os.kill(rank.pid, number)
    while number != signal.SIGSTOP and not rank.ended and time.monotonic() < began + _END_SECONDS:
        yield POLL_SECONDS


def _continue(command: Command, node: NodeContext) -> None:
    """Continue a stopped rank; other signals cannot be undone."""
    rank = node.held.pop(command.id, None)
    if rank is not None and rank.pid and not rank.ended:
        os.kill(rank.pid, signal.SIGCONT)


def _break_inside(command: Command, node: NodeContext) -> Generator[float, None, None]:
    """Have the rank execute `values["action"]` itself: leave a note for it, and announce the note with a signal."""
    action = command.values.get("action")
    if action not in fault_note.ACTIONS:
        raise ExecutionError(f"'{action}' is not an action of a rank")
    began = time.monotonic()
    rank = yield from node.running_rank(command)
    deadline = began + TIMEOUT_SECONDS
    yield from wait_until(
        lambda: fault_note.listens(rank.pid),
        f"rank {rank.rank} is not running a Python script",
        deadline=deadline,
        rank=rank,
    )
    note = fault_note.file_of(node.events, rank.pid)
    draft = note.with_suffix(".draft")
    draft.write_text(json.dumps({"id": command.id, **command.values}))
    draft.replace(note)
    node.held[command.id] = (rank, note)
    try:
        os.kill(rank.pid, fault_note.SIGNAL)
        yield from wait_until(
            lambda: not note.exists(),
            f"rank {rank.rank} is in a call that does not return to Python",
            deadline=deadline,
            rank=rank,
        )
    finally:
        with contextlib.suppress(FileNotFoundError):  # withdraw the note, so that nothing happens later
            note.unlink()
    while action in _ENDS and not rank.ended and time.monotonic() < began + _END_SECONDS:  # a script may survive
        yield POLL_SECONDS


def _release(command: Command, node: NodeContext) -> None:
    """Let a hanging rank continue."""
    rank, note = node.held.pop(command.id, (None, None))
    if rank is not None and note is not None:
        with contextlib.suppress(FileNotFoundError):
            fault_note.taken(note).unlink()
        if rank.pid and not rank.ended:
            os.kill(rank.pid, fault_note.SIGNAL)


def _limit_files(command: Command, node: NodeContext) -> Generator[float, None, None]:
    """Lower the rank's limit of open files to those that it has open now."""
    rank = yield from node.running_rank(command)
    soft, hard = resource.prlimit(rank.pid, resource.RLIMIT_NOFILE)
    node.held[command.id] = (rank, soft)
    lowest = soft
    for _ in range(SETTLE_POLLS):
        lowest = min(lowest, _next_descriptor(rank.pid))
        resource.prlimit(rank.pid, resource.RLIMIT_NOFILE, (lowest, hard))
        yield POLL_SECONDS


def _restore_files(command: Command, node: NodeContext) -> None:
    rank, soft = node.held.pop(command.id, (None, 0))
    if rank is not None and rank.pid and not rank.ended:
        hard = resource.prlimit(rank.pid, resource.RLIMIT_NOFILE)[1]
        resource.prlimit(rank.pid, resource.RLIMIT_NOFILE, (soft, hard))


def _next_descriptor(process: int) -> int:
    """Return the number of the next file to be opened: the kernel takes the smallest, and the limit is on numbers."""
    taken = {int(entry.name) for entry in Path(f"/proc/{process}/fd").iterdir()}
    return next(number for number in range(len(taken) + 1) if number not in taken)


def _set_grace(command: Command, node: NodeContext) -> Generator[float, None, None]:
    """Let the ranks of this node live longer after SIGTERM, until the agent ends."""
    yield from ()
    node.grace_seconds = float(command.values["seconds"])


def _restore_grace(_: Command, node: NodeContext) -> None:
    node.grace_seconds = NodeContext.grace_seconds


def _dump(command: Command, node: NodeContext) -> Generator[float, None, None]:
    """Inspect each rank of the latest round, one after another, and emit an event about each."""
    processes = {rank.rank: rank.pid for rank in node.ranks if rank.pid and not rank.ended}
    for rank, generation, page in list(_latest_pages(node)):
        if rank in processes:
            # Before it makes a process group, a rank has no helper thread, and has to be interrupted.
            is_spared = not command.values.get("at_end") or page.get("helper") not in (0, processes[rank])
            found = yield from inspect_rank(page, processes[rank], may_be_running=is_spared)
            node.events.bind(rank=rank, generation=generation).emit("dumped", **found)


def _profile(command: Command, node: NodeContext) -> Generator[float, None, None]:
    """Set `values["first"]` and `values["steps"]` in the page of each rank of the latest round."""
    yield from ()
    for _, _, page in _latest_pages(node):
        page.set("profile_first", int(command.values["first"]))
        page.set("profile_steps", int(command.values["steps"]))


def _latest_pages(node: NodeContext) -> Iterator[tuple[int, int, ProgressPage]]:
    """Yield each rank of the latest round, the number of that round, and the page of the rank."""
    found = [
        (int(rank), int(generation))
        for path in (node.events.folder / "observations").glob(f"{node.events.node}.*.progress")
        for rank, _, generation in [path.stem[len(node.events.node) + 1 :].partition(".")]
        if rank.isdecimal() and generation.isdecimal()
    ]
    latest = max((generation for _, generation in found), default=0)
    for rank, generation in found:
        if generation == latest:
            yield rank, generation, ProgressPage(node.events.folder, node.events.node, rank, generation)


def _forget(_: Command, __: NodeContext) -> None:
    """Change nothing: a dump needs no undoing, and a profile that has begun ends by itself."""


HANDLERS: dict[CommandName, CommandHandler] = {
    "dump": CommandHandler(_dump, _forget),
    "profile": CommandHandler(_profile, _forget),
    "grace": CommandHandler(_set_grace, _restore_grace),
    "rank_signal": CommandHandler(_signal, _continue),
    "rank_fault": CommandHandler(_break_inside, _release),
    "rank_files_full": CommandHandler(_limit_files, _restore_files),
}
