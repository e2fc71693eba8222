"""Scalars are read from whole records of an event file, and no bytes do anything else than raise ValueError."""

from __future__ import annotations

import struct
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compose_sim.core.events.scalars import Scalar, read_scalars


def part(number: int, content: bytes) -> bytes:
    """Return a field of bytes."""
    return bytes([number << 3 | 2, len(content)]) + content


def record(step: int, tag: bytes, value: bytes) -> bytes:
    """Return a record with one value, as SummaryWriter writes it."""
    event = b"\x09" + struct.pack("<d", 1.5) + bytes([2 << 3, step]) + part(5, part(1, part(1, tag) + value))
    return struct.pack("<Q", len(event)) + b"head" + event + b"foot"


PLAIN = bytes([2 << 3 | 5]) + struct.pack("<f", 0.25)
TENSOR = part(8, bytes([1 << 3, 1]) + part(5, struct.pack("<f", 0.5)))


def test_whole_records_are_read_and_the_rest_is_left_for_later() -> None:
    data = record(3, b"train/loss", PLAIN) + record(4, b"acc\x1b[2J", TENSOR)

    assert read_scalars(data) == ([Scalar("train/loss", 3, 0.25), Scalar("acc", 4, 0.5)], len(data))
    assert read_scalars(data[:-1]) == ([Scalar("train/loss", 3, 0.25)], len(record(3, b"train/loss", PLAIN)))
    assert read_scalars(record(1, b"nan", bytes([2 << 3 | 5]) + struct.pack("<f", float("nan"))))[0] == []


def test_an_endless_record_is_refused() -> None:
    with pytest.raises(ValueError, match="record"):
        read_scalars(struct.pack("<Q", 1 << 40) + bytes(8))


@given(st.binary(max_size=80))
def test_any_bytes_are_scalars_or_a_value_error(message: bytes) -> None:
    with suppress(ValueError):
        read_scalars(struct.pack("<Q", len(message)) + b"head" + message + b"foot")
