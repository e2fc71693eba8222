"""What a script leaves keeps composesim busy for a limited time."""

from __future__ import annotations

import gc
import signal
import time

import pytest

from compose_sim.engine.run_folder.judging_time import judging_time
from compose_sim.errors import OutOfTimeError


def test_steps_beyond_the_limit_are_given_up_one_by_one_and_nothing_after_it() -> None:
    given_up = 0
    with judging_time(0.05, then=0.05):
        for _ in range(3):
            try:
                while True:
                    pass
            except OutOfTimeError:
                given_up += 1

    assert given_up == 3
    assert signal.getitimer(signal.ITIMER_PROF) == (0.0, 0.0)


class _Finalized:
    def __del__(self) -> None:
        _spend(0.2)


def _spend(seconds: float) -> None:
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass


def _in_a_callback_of_the_collector(_phase: str, _info: dict[str, int]) -> None:
    _spend(0.2)


def _finalize_and_go_on() -> None:
    _Finalized()
    _spend(5)


def _collect_and_go_on() -> None:
    gc.collect()
    _spend(5)


def test_the_limit_is_not_lost_in_a_finalizer() -> None:
    with pytest.raises(OutOfTimeError), judging_time(0.05, then=3600):
        _finalize_and_go_on()


def test_the_limit_is_not_lost_in_a_callback_of_the_garbage_collector() -> None:
    gc.callbacks.append(_in_a_callback_of_the_collector)
    try:
        with pytest.raises(OutOfTimeError), judging_time(0.05, then=3600):
            _collect_and_go_on()
    finally:
        gc.callbacks.remove(_in_a_callback_of_the_collector)
