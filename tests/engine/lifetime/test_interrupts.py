"""A signal ends a run at any moment, and corrupts nothing."""

from __future__ import annotations

import signal
import threading

import pytest

from compose_sim.engine.lifetime.interrupts import WakeUps, interrupts_delayed, interrupts_raise, interrupts_wake


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_told_or_raised_as_asked(number: signal.Signals) -> None:
    wake_ups = WakeUps()
    with interrupts_raise():
        with interrupts_wake(wake_ups):
            signal.raise_signal(number)
        assert wake_ups.wait(60)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)


def test_a_delayed_signal_comes_when_the_context_ends() -> None:
    done = []

    def interrupted() -> None:
        with interrupts_delayed():
            signal.raise_signal(signal.SIGTERM)
            done.append("the rest of the context")

    with interrupts_raise(), pytest.raises(KeyboardInterrupt):
        interrupted()
    assert done


def test_news_that_end_nothing_are_no_wish_to_end() -> None:
    wake_ups = WakeUps()
    wake_ups.wake()

    assert not wake_ups.wait(60)
    assert not wake_ups.wait(0.0)


def test_no_signal_is_lost_and_none_stops_what_is_told_later() -> None:
    """Try hundreds of moments: a threading.Event in place of WakeUps kept the lock within the first hundreds."""
    told = 0
    wake_ups = WakeUps()
    before = signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGTERM))
    with interrupts_wake(wake_ups):
        for number in range(500):
            signal.setitimer(signal.ITIMER_REAL, 0.0001 + number * 1e-6)
            while not wake_ups.wait(0.00001):
                pass
            told += 1
    signal.signal(signal.SIGALRM, before)
    other = threading.Thread(target=wake_ups.wake)
    other.start()
    other.join()

    assert told == 500
    assert not wake_ups.wait(60)


def test_a_process_that_a_shell_put_into_the_background_hears_no_ctrl_c() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        wake_ups = WakeUps()
        with interrupts_wake(wake_ups):
            signal.raise_signal(signal.SIGINT)
        assert not wake_ups.wait(0.0)
    finally:
        signal.signal(signal.SIGINT, before)
