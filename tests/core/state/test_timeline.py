"""A collective is divided into waiting for its last rank and moving data."""

from __future__ import annotations

import json

import pytest

from compose_sim.core.report.bottleneck import RankTimes, data_share, rank_times, straggler_line
from compose_sim.core.state.timeline import Message, Span, Timeline


def line(
    step: int,
    began: float,
    *waits: list[object],
    work: list[list[object]] | None = None,
    lines: tuple[object, ...] = (),
) -> str:
    return json.dumps(
        {
            "kind": "step-times",
            "t": began,
            "step": step,
            "began": began,
            "work": work or [],
            "waits": waits,
            "lines": lines,
        },
        separators=(",", ":"),
    )


def test_the_last_rank_moves_data_while_the_others_have_waited_for_it() -> None:
    timeline = Timeline()
    reduce = "all_reduce #1 (train.py, line 7)"

    assert timeline.add(0, 0, [line(1, 100.0, [reduce, 0, 500_000, "0", 2, 1])]) == []
    spans = timeline.add(1, 0, [line(1, 100.0, [reduce, 400_000, 100_000, "0", 2, 1])])

    assert spans == [
        Span(0, "waiting", 100.0, pytest.approx(0.4), 1, reduce, late=1),
        Span(0, "moving", pytest.approx(100.4), pytest.approx(0.1), 1, reduce),
        Span(1, "moving", pytest.approx(100.4), pytest.approx(0.1), 1, reduce),
    ]


def test_the_same_number_in_another_round_or_group_is_another_collective() -> None:
    timeline = Timeline()
    barrier = ["barrier #1", 0, 10_000, "0", 2, 1]

    assert timeline.add(0, 0, [line(1, 1.0, barrier)]) == []
    assert timeline.add(1, 1, [line(1, 9.0, barrier)]) == []
    assert timeline.add(1, 0, [line(1, 1.0, [*barrier[:3], "pair", 2, 1])]) == []
    assert {(span.rank, span.kind) for span in timeline.finish()} == {(0, "collective"), (1, "collective")}


def test_a_straggler_arrives_later_than_the_median_rank() -> None:
    """Rank 2 comes 0.4 s late to every other collective; rank 1 is last in the rest, by nothing that counts."""
    timeline = Timeline()
    for step in range(1, 11):
        for rank, late_s in enumerate((0.0, 0.00001, 0.4 if step % 3 else 0.0)):
            began = float(step)
            work: list[list[object]] = [["data", 0, 100_000]] if rank == 1 else [["forward", 0, 100_000]]
            wait: list[object] = ["barrier", round(1e5 + late_s * 1e6), 400_000, "0", 3, step]
            timeline.add(rank, 0, [line(step, began, wait, work=work)])

    first, second, third = rank_times(timeline.tallies)
    assert [each.collectives for each in (first, second, third)] == [10, 10, 10]
    assert [(each.last, each.late_s) for each in (first, second, third)] == [
        (0, 0.0),
        (0, 0.0),
        (7, pytest.approx(2.8, abs=1e-3)),
    ]
    assert third.held_up_s == pytest.approx(7 * 0.39999, abs=1e-3)  # all but rank 2 would have been there by then
    assert third.straggler_score == pytest.approx(2.8 / 9.9, abs=0.02)
    assert second.data_s == pytest.approx(1.0)
    assert data_share((first, second, third)) == pytest.approx(1.0 / (3 * 9.6), abs=0.01)
    assert straggler_line((first, second, third)).startswith("rank 2: the last of 3 ranks in 7 of 10 collectives")
    assert straggler_line((first, second)) == ""


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_the_line_of_a_straggler_is_where_it_was_while_all_others_waited(order: tuple[int, ...]) -> None:
    """Before the others arrived, it was elsewhere for longer. A report reads all records of one rank after the other."""
    timeline = Timeline()
    lines = (["/a/train.py", 3, 0, 500_000], ["/a/train.py", 8, 500_000, 390_000])
    for rank in order:
        for step in range(1, 11):
            wait: list[object] = ["barrier", 900_000 if rank == 2 else 500_000, 1000, "0", 3, step]
            timeline.add(rank, 0, [line(step, float(step), wait, lines=lines if rank == 2 else ())])

    _, _, third = rank_times(timeline.tallies)
    assert third.late_at == "train.py, line 8"
    assert straggler_line(rank_times(timeline.tallies)).endswith("mostly at train.py, line 8")


def test_a_rank_that_is_the_last_one_by_chance_is_no_straggler() -> None:
    often, by_chance = (
        RankTimes(rank=0, steps_s=9.0, data_s=0.0, collectives=100, last=last, late_s=2.0, straggler_score=0.22)
        for last in (70, 57)
    )

    assert (often.is_straggler, by_chance.is_straggler) == (True, False)


def test_work_is_known_at_once_and_torn_or_foreign_lines_are_ignored() -> None:
    lines = [line(3, 5.0, work=[["forward", 0, 2000], ["bogus", 0, 1]]), line(4, 6.0)[:40], '{"kind":"join"}', "x"]

    assert Timeline().add(2, 0, lines) == [Span(2, "forward", 5.0, 0.002, 3)]


def test_a_message_leads_from_the_sender_to_the_receiver_and_who_has_sent_it_does_not_wait() -> None:
    timeline = Timeline()
    timeline.add(0, 0, [line(1, 100.0, ["isend (a.py, line 3)", 0, 50_000, "0>1", 2, 1])])
    spans = timeline.add(1, 0, [line(1, 100.0, ["recv (a.py, line 5)", 200_000, 100_000, "0>1", 2, 1])])

    assert timeline.messages == [Message(0, 100.0, 1, pytest.approx(100.3))]
    assert {(span.rank, span.kind) for span in spans} == {(0, "moving"), (1, "moving")}
