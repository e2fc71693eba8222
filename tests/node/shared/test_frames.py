"""Exceptions of a script are described whatever they do, and those of its signal handlers are known as such."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from compose_sim.node.shared.frames import describe, describe_with_our_line, is_of_signal_handler, message_of


class Unprintable(Exception):
    """An exception as some libraries have it."""

    def __str__(self) -> str:
        raise ValueError("no words")


class Stopper:
    """A handler that is a method, as trainers have it."""

    def stop(self, number: int, frame: Any) -> None:
        raise TimeoutError(f"signal {number}")


def stop(number: int, frame: Any) -> None:
    raise TimeoutError(f"signal {number}")


def test_an_exception_that_cannot_be_printed_is_described() -> None:
    assert message_of(Unprintable()) == "<exception str() failed>"
    assert describe(Unprintable()) == describe_with_our_line(Unprintable()) == "Unprintable: <exception str() failed>"


@pytest.mark.parametrize("handler", [stop, Stopper().stop])
def test_what_a_signal_handler_raises_is_told_from_other_errors(handler: Any) -> None:
    former = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises(TimeoutError) as interrupted:
            signal.raise_signal(signal.SIGUSR1)
        with pytest.raises(ZeroDivisionError) as other:
            1 / 0  # noqa: B018
        assert is_of_signal_handler(interrupted.value)
        assert not is_of_signal_handler(other.value)
    finally:
        signal.signal(signal.SIGUSR1, former)
