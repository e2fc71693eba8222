"""Read scalars from the bytes of a TensorBoard event file: records of TFRecord that hold messages of protobuf.

The few fields that scalars need are read here, so that only these functions handle bytes that a training script wrote.
Sources: tensorflow/core/lib/io/record_writer.h, and event.proto, summary.proto and tensor.proto of TensorFlow.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from typing import NamedTuple

from compose_sim.core.events.event_data import printable

_HEADER, _FOOTER = 12, 4  # bytes around the data of a record: its length, and checksums, which are not checked
_LONGEST_RECORD = 1 << 20  # bytes; scalars take a hundred, and images or graphs are not read
_LONGEST_TAG = 100
_EVENT_STEP, _EVENT_SUMMARY, _SUMMARY_VALUE, _TAG, _SIMPLE_VALUE, _TENSOR = 2, 5, 1, 1, 2, 8
_FLOATS, _CONTENT = 5, 4  # of a tensor


class Scalar(NamedTuple):
    """One value of a metric."""

    tag: str
    step: int
    value: float


def read_scalars(data: bytes) -> tuple[list[Scalar], int]:
    """Return the scalars in whole records, and how many bytes these take; ValueError if the bytes are no such records."""
    scalars: list[Scalar] = []
    at = 0
    while len(data) - at >= _HEADER:
        (length,) = struct.unpack_from("<Q", data, at)
        if length > _LONGEST_RECORD:
            raise ValueError(f"a record of {length} bytes")
        end = at + _HEADER + length + _FOOTER
        if end > len(data):
            break
        scalars += _scalars(data[at + _HEADER : end - _FOOTER])
        at = end
    return scalars, at


def _scalars(event: bytes) -> Iterator[Scalar]:
    fields = list(_fields(event))
    step = next((value for number, value in fields if number == _EVENT_STEP and isinstance(value, int)), 0)
    for number, summary in fields:
        if number != _EVENT_SUMMARY or not isinstance(summary, bytes):
            continue
        for inner, value in _fields(summary):
            if inner != _SUMMARY_VALUE or not isinstance(value, bytes):
                continue
            parts = dict(_fields(value))
            tag, number_read = parts.get(_TAG), _number(parts)
            if isinstance(tag, bytes) and number_read is not None and math.isfinite(number_read) and step < 1 << 53:
                yield Scalar(printable(tag.decode("utf-8", "replace"))[:_LONGEST_TAG], step, number_read)


def _number(value: dict[int, int | bytes]) -> float | None:
    """Return a plain value, or that of a tensor with one float."""
    plain, tensor = value.get(_SIMPLE_VALUE), value.get(_TENSOR)
    if isinstance(tensor, bytes):
        parts = dict(_fields(tensor))
        plain = parts.get(_FLOATS, parts.get(_CONTENT))
    return float(struct.unpack("<f", plain)[0]) if isinstance(plain, bytes) and len(plain) == 4 else None


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield number and value of each field; fixed-size values as bytes."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        kind = key & 7
        if kind == 0:
            number, at = _varint(message, at)
            yield key >> 3, number
            continue
        if kind == 2:
            size, at = _varint(message, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise ValueError(f"a field of wire type {kind}")
        if at + size > len(message):
            raise ValueError("a field that is cut off")
        yield key >> 3, message[at : at + size]
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 64, 7):
        if at >= len(message):
            break
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError("a number that is too long or cut off")
