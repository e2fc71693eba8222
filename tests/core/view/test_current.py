"""Who is in which collective now, and for whom: from what each rank waits in at one moment."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from compose_sim.core.plan.model import Plan
from compose_sim.core.state.fold import fold_all
from compose_sim.core.state.state import ClusterState
from compose_sim.core.state.timeline import KINDS
from compose_sim.core.view.page import CurrentWait, current_waits
from tests.builders import a_plan
from tests.core.story import Story

PAIRS = {(0, "1"): {0, 1}, (0, "2"): {2, 3}}


def begun(plan: Plan) -> Story:
    return Story(plan).starts(1.0, 0, 1, 2, 3).round(2.0, 0, 1, 2, 3)


def a_state() -> ClusterState:
    """Return four ranks in one round."""
    plan = a_plan(nodes=4)
    return replace(fold_all(plan, begun(plan).trains(3.0, 1, 2).events), started_at=1.0)


def seen(state: ClusterState, waits: dict[int, CurrentWait], *halted: int) -> dict[int, tuple[str, list[int]]]:
    """Return the kind of each rank's wait, and for whom it waits."""
    found: dict[int, list[Any]] = current_waits(state, waits, PAIRS, now=12.0, halted=set(halted))
    return {rank: (KINDS[kind], late) for rank, (kind, *_, late) in found.items()}


def of_world(number: int, *, what: str = "all_reduce #1") -> CurrentWait:
    return CurrentWait(what, 10.0, "0", 4, number)


def test_ranks_wait_for_those_that_have_not_reached_the_collective() -> None:
    state = a_state()
    waits = {rank: of_world(7) for rank in (0, 1, 3)}

    assert seen(state, waits) == {rank: ("waiting", [2]) for rank in (0, 1, 3)}
    assert seen(state, {**waits, 2: of_world(7)}) == {rank: ("moving", []) for rank in range(4)}
    (first, *_) = current_waits(state, waits, PAIRS, now=12.0).values()
    assert first == [KINDS.index("waiting"), "all_reduce #1", 9.0, 2.0, [2]]


def test_a_rank_that_is_deadlocked_is_named_before_those_that_wait_themselves() -> None:
    pair = CurrentWait("all_reduce #3", 10.0, "1", 2, 4)

    assert seen(a_state(), {0: pair, 2: of_world(7), 3: of_world(7)}) == {
        0: ("waiting", [1]), 2: ("waiting", [1, 0]), 3: ("waiting", [1, 0])
    }  # fmt: skip


def test_a_rank_that_has_left_the_collective_is_not_awaited() -> None:
    waits = {rank: replace(of_world(7), left=frozenset({0})) for rank in (1, 2, 3)}

    assert seen(a_state(), waits) == {rank: ("moving", []) for rank in (1, 2, 3)}
    assert seen(a_state(), {**waits, 0: of_world(8)}) == {
        0: ("waiting", [1, 2, 3]),
        **dict.fromkeys((1, 2, 3), ("moving", [])),
    }


def test_a_message_is_between_two_ranks_and_members_of_an_unknown_group_are_not_guessed() -> None:
    state = a_state()

    assert seen(state, {1: CurrentWait("recv", 10.0, "3>1", 2, 1)}) == {1: ("waiting", [3])}
    assert seen(state, {1: CurrentWait("recv", 10.0, "3>1", 2, 1), 3: CurrentWait("send", 10.0, "3>1", 2, 1)}) == {
        1: ("moving", []), 3: ("moving", [])
    }  # fmt: skip
    assert seen(state, {1: CurrentWait("barrier #1", 10.0, "9", 2, 1)}) == {1: ("collective", [])}


def test_ranks_that_join_wait_for_the_others_and_those_that_have_exited_for_nobody() -> None:
    plan = a_plan(nodes=4)
    story = begun(plan).tell(3.0, "init", 0, phase="started").tell(3.0, "init", 1, phase="started")
    story.tell(4.0, "rank-exited", 3, exit_code=1)

    assert seen(fold_all(plan, story.events), {3: of_world(1)}) == {0: ("waiting", [2]), 1: ("waiting", [2])}


def test_ranks_wait_for_one_that_is_stopped_in_the_collective_by_whatever_means() -> None:
    plan, waits = a_plan(nodes=4), {rank: of_world(7) for rank in range(4)}
    paused, parted = (begun(plan).trains(3.0, 1, 2).fault(8.0, "f", kind, 2).state for kind in ("pause", "partition"))
    expected = {rank: ("waiting", [2]) for rank in (0, 1, 3)}

    assert seen(a_state(), waits, 2) == expected
    assert seen(paused, waits) == expected
    assert seen(parted, waits) == dict.fromkeys(range(4), ("collective", []))
    left = {rank: replace(each, left=frozenset({2})) for rank, each in waits.items() if rank != 2}
    assert seen(a_state(), left, 2) == {rank: ("moving", []) for rank in (0, 1, 3)}
