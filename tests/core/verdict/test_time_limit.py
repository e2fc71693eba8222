"""A run that is stopped at its time limit names the line of each rank."""

from __future__ import annotations

from typing import Any

from compose_sim.core.events.events import Event
from compose_sim.core.state.fold import fold_all
from compose_sim.core.verdict.time_limit import time_limit_reached, to_ask
from tests.builders import a_plan, an_event

PLAN = a_plan(nodes=3, timeout="10s")


def started(*, at: float = 2.0) -> list[Event]:
    events = [an_event("started", 0.0)]
    for rank in range(3):
        events += [
            an_event("node-started", at, node=f"node-{rank}"),
            an_event("rendezvous", at, node=f"node-{rank}", world_size=3),
            an_event("rank-started", at, rank=rank),
            an_event("init", at, rank=rank, phase="done"),
        ]
    return events


def dumped(rank: int, line: int, *, t: float = 10.5, **data: Any) -> Event:
    place = ["/project/train.py", line, "main", "loss.backward()"]
    values = {"place": place, "frames": [["/project/train.py", line, "main"]], **data}
    return an_event("dumped", t, rank=rank, **values)


def test_each_rank_is_asked_once_the_time_is_over() -> None:
    state = fold_all(PLAN, [*started(), dumped(0, 12), dumped(1, 12, t=3.0)])

    assert to_ask(state, since=10.0) == {1, 2}


def test_the_message_groups_the_ranks_by_line() -> None:
    state = fold_all(PLAN, [*started(), dumped(0, 12), dumped(1, 12), dumped(2, 30)])
    found = time_limit_reached(state, PLAN, now=11.0)

    assert found.message.startswith("not done after 10.0 s: ranks 0, 1 in ")
    assert "train.py, line 12: `loss.backward()`; rank 2 in " in found.message
    assert found.traceback.count('train.py", line 12') == 2


def test_a_slow_start_is_not_counted_as_training() -> None:
    state = fold_all(PLAN, [*started(at=8.0), dumped(0, 12), dumped(1, 12), dumped(2, 12)])

    assert "8.00 s of them to start the nodes" in time_limit_reached(state, PLAN, now=11.0).message


def test_a_rank_without_a_process_group_is_named_if_it_has_come_to_the_script() -> None:
    """Until it makes one, it counts as starting; a rank that still imports torch has no line."""
    events = [event for event in started() if event.kind != "init"]
    before, loops, imports = (
        fold_all(PLAN, [*events, *more]) for more in ([], [dumped(0, 3)], [dumped(0, 3, place=None)])
    )

    assert to_ask(before, since=10.0) == {0, 1, 2}
    assert "rank 0 in /project/train.py, line 3: " in time_limit_reached(loops, PLAN, now=11.0).message
    assert "node-0, node-1, node-2: starting" in time_limit_reached(imports, PLAN, now=11.0).message
