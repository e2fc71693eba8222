"""A node reports only about the ranks that the master has put on it."""

from __future__ import annotations

import pytest

from compose_sim.core.events.events import Event
from compose_sim.core.state.fold import fold
from compose_sim.core.state.state import is_on
from tests.builders import a_plan
from tests.core.story import Story

PLAN = a_plan(nodes=3, nproc_per_node=2, elastic="2:3")


def story() -> Story:
    """Node-1 leaves after the first round, so ranks 2 and 3 move to node-2; two ranks a node."""
    told = Story(PLAN)
    for generation, nodes in enumerate((["node-0", "node-1", "node-2"], ["node-0", "node-2"])):
        data = {"world_size": 2 * len(nodes), "nodes": nodes}
        told.events.append(Event(t=float(generation), kind="round", node="master", generation=generation, data=data))
    return told


@pytest.mark.parametrize(
    ("node", "rank", "generation", "lives_there"),
    [
        ("node-1", 2, 0, True),
        ("node-2", 2, 0, False),
        ("node-2", 2, 1, True),
        ("node-1", 2, 1, False),
        ("node-2", 3, None, True),  # now
        ("node-2", 4, None, False),
        ("node-0", 0, 2, False),  # nobody began that round
        ("node-7", 0, 0, False),
    ],
)
def test_a_rank_lives_where_the_master_put_it(node: str, rank: int, generation: int | None, lives_there: bool) -> None:
    assert is_on(story().state, node, rank, generation) is lives_there


@pytest.mark.parametrize(
    ("node", "generation", "lives_there"),
    [("node-1", 0, True), ("node-1", None, True), ("node-0", 0, False), ("node-1", 1, False)],
)
def test_before_the_first_round_the_plan_decides(node: str, generation: int | None, lives_there: bool) -> None:
    assert is_on(Story(PLAN).state, node, 2, generation) is lives_there


@pytest.mark.parametrize("generation", [None, 0, 1, 2])
@pytest.mark.parametrize("kind", ["exception", "rank-exited", "stalled", "step", "metric", "script-ended"])
def test_what_a_node_says_about_a_rank_of_another_node_changes_nothing(kind: str, generation: int | None) -> None:
    state = story().state
    data = {"type": "X", "message": "x", "exit_code": 7, "step": 3, "since_s": 9.0}

    assert fold(state, Event(t=0.5, kind=kind, node="node-0", rank=2, generation=generation, data=data)) == state


def test_a_node_cannot_begin_a_round() -> None:
    before = story().state
    data = {"world_size": 2, "nodes": ["node-0"]}
    after = fold(before, Event(t=1.0, kind="rendezvous", node="node-0", generation=9, data=data))

    assert (after.generation, after.rounds, after.ranks) == (before.generation, before.rounds, before.ranks)
