"""What the words about a large world say."""

from __future__ import annotations

import pytest

from compose_sim.errors import SpecError
from compose_sim.plugins.world.core.lines import lines
from compose_sim.plugins.world.core.world import (
    PlannedRank,
    PlannedWorld,
    SampleSets,
    planned_world,
    ranks_in_words,
    ranks_per_node,
    ranks_to_run,
)


def a_world(*, steps: tuple[int, int] = (7, 7), repeated: int = 0, outcome: str = "stepped") -> PlannedWorld:
    ranks = {"rank": 0, "outcome": outcome, "steps": 2}
    samples = {
        "shares": 4,
        "length": 100,
        "distinct": 100,
        "repeated": repeated,
        "dropped": 0,
        "steps": steps,
        "samples": (25, 25),
        "of_ranks": (0, 1, 2, 3),
        "examined": 4,
        "way": "copies",
    }
    return planned_world(4, 2, {"ranks": [ranks], "samples": samples})


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        (range(8), "all 8 ranks"),
        ((4, 5, 6, 7), "4–7"),
        ((1, 3), "1, 3"),
        (range(1, 8, 1), "1–7"),
        ((0, 1, 2, 4, 7), "0, 1, …, 7 (5 ranks)"),
    ],
)
def test_ranks_are_described_by_their_pattern(ranks: range, words: str) -> None:
    assert ranks_in_words(tuple(ranks), 8) == words


def test_a_stride_is_named() -> None:
    assert ranks_in_words(tuple(range(7, 1024, 8)), 1024) == "7, 15, …, 1023 (every 8th)"
    assert ranks_in_words(tuple(range(0, 1024, 2)), 1024).endswith("(every 2nd)")


def test_the_size_of_nodes_divides_the_world() -> None:
    assert [ranks_per_node(world, None) for world in (1024, 12, 6, 7)] == [8, 4, 2, 1]
    assert ranks_per_node(12, 3) == 3
    for world, requested in ((1, None), (10, 4), (100_000, None)):
        with pytest.raises(SpecError):
            ranks_per_node(world, requested)


def test_ranks_are_chosen_or_checked() -> None:
    assert ranks_to_run(1024, "") == (0, 511, 1023)
    assert ranks_to_run(8, "7,0, 3") == (0, 3, 7)
    for text in ("8", "-1", "a", "1,,2", "9" * 40, ",".join(map(str, range(17)))):
        with pytest.raises(SpecError):
            ranks_to_run(17 if text.count(",") > 5 else 8, text)


def test_a_world_works_if_its_ranks_build_and_make_the_same_steps() -> None:
    assert a_world().works
    assert not a_world(steps=(6, 7)).works
    assert not a_world(steps=(0, 0)).works
    assert not a_world(outcome="raised").works


def test_padding_is_no_overlap() -> None:
    def sets(repeated: int, steps: int = 1) -> SampleSets:
        found = a_world(repeated=repeated, steps=(steps, steps)).samples
        assert found is not None
        return found

    assert not sets(3).overlaps
    assert sets(4).overlaps
    assert not sets(15, steps=7).overlaps, "shares of whole batches of four, as Accelerate makes them"
    assert sets(16, steps=7).overlaps


def test_ranks_that_did_the_same_are_described_once() -> None:
    ranks = tuple(PlannedRank(rank=rank, outcome="stepped", steps=2) for rank in (0, 1))
    text = [*lines(PlannedWorld(world=4, per_node=2, ranks=ranks, samples=None))]

    assert text.count("ranks 0, 1") == 1
    assert not any(line.startswith("rank ") for line in text)


@pytest.mark.parametrize(
    "wrong", [{}, {"ranks": 3}, {"ranks": [{"rank": "0"}], "samples": None}, {"ranks": [], "samples": 5}]
)
def test_a_result_of_another_form_is_refused(wrong: object) -> None:
    with pytest.raises((ValueError, TypeError)):
        planned_world(4, 2, wrong)
