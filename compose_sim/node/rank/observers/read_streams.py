"""Record, in `check`, the first samples that each worker of a loader reads from a stream: nothing divides a stream among workers."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ...records.data import StreamRead
from ..context import RankContext
from ..torch_hooks import points
from .iterations import Iteration
from .loaders import BEGUN
from .samples import rows_of

_SAMPLES, _MAX_COUNTED = 96, 50_000  # whose hashes are written, and that are counted
_MODULUS = 1 << 61


def begin(context: RankContext) -> None:
    if context.mode == "record":
        points.STREAM_OPENED.subscribe(_open, in_children=True)


def _open(context: RankContext, call: points.TorchCall) -> points.Steps:
    yield
    iteration: Iteration | None = context.memory.get(BEGUN)
    info = sys.modules["torch"].utils.data.get_worker_info()
    if not context.is_here and iteration is not None and iteration.epoch == 0 and info is not None:
        note = StreamRead(iteration.loader.number, int(info.id), int(info.num_workers), (), at=iteration.at)
        call.owner.dataset_iter = _read(context, call.owner.dataset_iter, note)


def _read(context: RankContext, stream: Iterator[Any], note: StreamRead) -> Iterator[Any]:
    """Pass a stream on, and record its first samples when there are as many, and all of them when there are no more."""
    first: list[int] = []
    count = total = 0
    for sample in stream:
        if count < _MAX_COUNTED:
            number = _hash_of(sample)
            count, total = count + 1, (total + number * number) % _MODULUS
            first += [number] if count <= _SAMPLES else []
            if count == _SAMPLES:
                context.observations.note_from_child(replace(note, rows=tuple(first)))
        yield sample
    if count < _MAX_COUNTED:
        context.observations.note_from_child(replace(note, rows=tuple(first), whole=(count, total)))


def _hash_of(sample: Any) -> int:
    rows = rows_of(sample)
    return zlib.crc32((repr(rows) if rows else repr(sample)[:1000]).encode())
