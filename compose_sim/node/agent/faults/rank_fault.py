"""How does a rank come to raise, exit, hang or hold the interpreter's lock? It is handed a note and a signal, and takes the note."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Generator

from ...shared import fault_note
from . import FailedError, Node, Order

_SECONDS_TO_TAKE = 8.0  # composesim waits for 20
_SECONDS_TO_END = 9.0  # with those before
_ENDS = ("raise", "exit")
_LOOK_SECONDS = 0.02


def do(order: Order, node: Node) -> Generator[float, None, None]:
    """`values`: rank, act, and what the act asks for. Done once the rank has taken it, and has ended if it is to."""
    act = order.values.get("act")
    if act not in fault_note.ACTS:
        raise FailedError(f"'{act}' is nothing that a rank could be told to do")
    rank, began = node.rank(order), time.monotonic()
    until = began + _SECONDS_TO_TAKE
    while not (rank.pid and fault_note.listens(rank.pid)):
        if rank.ended or time.monotonic() > until:
            raise FailedError(f"rank {rank.rank} runs no Python script that could be told")
        yield _LOOK_SECONDS
    note = fault_note.file_of(node.events, rank.pid)
    draft = note.with_suffix(".draft")
    draft.write_text(json.dumps({"id": order.id, **order.values}))
    draft.replace(note)
    node.held[order.id] = (rank, note)
    try:
        os.kill(rank.pid, fault_note.SIGNAL)
        while note.exists():
            if rank.ended or time.monotonic() > until:
                raise FailedError(f"rank {rank.rank} is in a call that does not return to Python")
            yield _LOOK_SECONDS
    finally:
        with contextlib.suppress(FileNotFoundError):  # taken back, so that nothing happens later
            note.unlink()
    while act in _ENDS and not rank.ended and time.monotonic() < began + _SECONDS_TO_END:  # a script may survive it
        yield _LOOK_SECONDS


def undo(order: Order, node: Node) -> None:
    """Let the rank go on, if it is still there."""
    rank, note = node.held.pop(order.id, (None, None))
    if rank is not None and note is not None:
        with contextlib.suppress(FileNotFoundError):
            fault_note.taken(note).unlink()
        if rank.pid and not rank.ended:
            os.kill(rank.pid, fault_note.SIGNAL)
