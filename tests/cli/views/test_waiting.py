"""What a starting run says it waits for, and when."""

from __future__ import annotations

from queue import Queue
from threading import Event

import pytest

from compose_sim.cli.views import waiting
from compose_sim.cli.views.live import PlainListener
from compose_sim.cli.views.waiting import Waiting
from tests.builders import a_plan


class Clock(Event):
    """A clock that only waiting moves, and the end of the start after 100 s."""

    now = 0.0

    def monotonic(self) -> float:
        """Return the seconds that were waited."""
        return self.now

    def wait(self, timeout: float | None = None) -> bool:
        """Let the time pass, and return whether the start is over."""
        self.now += timeout or 0.0
        return self.now > 100


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(waiting, "time", made)
    monkeypatch.setattr(waiting, "Event", lambda: made)
    return made


def told(start: Waiting) -> list[str]:
    """Return everything that `tell` says until the start is over."""
    said: Queue[str] = Queue()
    start.tell(said.put).join(60)
    return list(said.queue)


def test_what_a_run_waits_for_is_told_at_twice_the_time_of_the_last(clock: Clock) -> None:
    start = Waiting()
    start.what = "node-1 to start"

    assert told(start) == [f"after {seconds} s, waiting for node-1 to start" for seconds in (5, 10, 20, 40, 80)]


def test_nothing_is_told_while_nothing_is_waited_for(clock: Clock) -> None:
    start = Waiting()

    assert told(start) == []
    assert start.line() == f"{clock.now:.0f} s"


def test_nothing_is_told_after_the_end() -> None:
    start = Waiting()
    start.what = "an image"
    start.end()

    assert told(start) == []


def test_a_second_run_is_waited_for_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """`check` starts one without GPUs if the first fails with emulated ones: both have one listener."""
    begun, tell = list[Waiting](), Waiting.tell
    monkeypatch.setattr(Waiting, "tell", lambda waiting, _: begun.append(waiting))
    listener = PlainListener(a_plan(nodes=2))
    listener.waiting("the engine")
    listener.waiting("the engine to create 2 nodes")
    begun[0].what = ""  # the first run has printed something

    listener.waiting("the engine")
    listener.close()

    said: Queue[str] = Queue()
    for each in begun:
        each.what = "anything"
        tell(each, said.put).join(60)
    assert len(begun) == 2
    assert said.empty()
