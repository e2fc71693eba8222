"""Pictures show what ranks observed and what the course's program reported, and claim nothing that was not seen."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from compose_sim.core.checks import Case
from compose_sim.core.events.events import Event
from compose_sim.core.events.observations import Observed, RankObserved, parse_rank
from compose_sim.plugins.learn.core.lesson import Picture, parse_lesson
from compose_sim.plugins.learn.core.outcome import Evidence, Shares, measured_shares
from compose_sim.plugins.learn.core.pictures import draw
from compose_sim.plugins.learn.core.rounds import endings_of, rounds_of
from tests.builders import a_report

LESSON = parse_lesson(
    "{title: T, goal: G, question: Q, answer: A, why: W, hints: [a, b, c], pass: {steps: 1}, fails: steps}",
    "lesson.yaml",
)
NOTHING = Observed(ranks={})


def lines(picture: Picture, observed: Observed = NOTHING, **evidence: Any) -> list[str]:
    drawn = draw(
        LESSON.model_copy(update={"picture": picture}),
        Case(observed=observed, verdict="passed"),
        Evidence(report=a_report(), observed=observed, **evidence),
    )
    assert max(map(len, drawn), default=0) <= 78
    return [*drawn]


def a_rank(rank: int, *records: Mapping[str, Any], node: str = "") -> RankObserved:
    """Return what a rank observed; a record without a time happened after the one before."""
    timed = ({"t": float(number), **each} for number, each in enumerate(records))
    return parse_rank(node or f"node-{rank}", rank, map(json.dumps, timed))


def of_ranks(*ranks: Iterable[Mapping[str, Any]]) -> Observed:
    return Observed(ranks={rank: a_rank(rank, *records) for rank, records in enumerate(ranks)})


def test_shares_are_drawn_by_rank_and_what_was_taken_twice_or_never() -> None:
    shares = Shares(what="adds number", count=6, by_rank={0: (0, 4), 1: (1, 0), 2: (3, 3)})
    observed = Observed(ranks={rank: a_rank(rank, node=f"node-{rank // 2}") for rank in range(3)})

    drawn = lines("shares", observed, shares=shares)

    assert drawn[1] == "#1·#0·"
    assert drawn[2].split()[0] == "2"
    assert [line.split(",")[0] for line in drawn[3:]] == ["node-0", "node-0", "node-1"]
    assert drawn[4].endswith(" 2: 1 0")
    assert lines("shares", observed) == []


def test_many_shares_continue_on_the_next_line_and_the_last_of_a_rank_is_shown() -> None:
    evens, odds = tuple(range(0, 81, 2)), (*range(1, 81, 2), 0)
    drawn = lines("shares", shares=Shares(what="evaluates sample", count=81, by_rank={0: evens, 1: odds}))

    assert (drawn[1] + drawn[2]) == "#" + "10" * 40
    assert drawn[-1].endswith("41: 1 3 5 7 9 11 … 0")


def test_only_shares_that_the_program_of_the_course_reports_are_drawn() -> None:
    def of(shares: Any, token: str = "abc") -> Shares | None:
        return measured_shares({1: (json.dumps({"shares": shares, "token": token}),)}, "abc")

    right = {"what": "adds number", "count": 3, "items": [0, 2, 2]}
    assert of(right) == Shares(what="adds number", count=3, by_rank={1: (0, 2, 2)})
    assert of({**right, "items": [-1, 3, "0", 1]}) == Shares(what="adds number", count=3, by_rank={1: (1,)})
    assert [of(right, "xyz"), of([0]), of({**right, "count": 10**9}), of(None)] == [None] * 4


SHARED = "/run/shared/model.pt"


def use(op: str, path: str = SHARED, **fields: Any) -> dict[str, Any]:
    return {"kind": "file-use", "op": op, "path": path, "at": ["/home/ada/09/script.py", 3], **fields}


BARRIER = {"kind": "collective", "op": "barrier", "group": [0, 1]}


def test_two_writers_between_two_collectives_are_drawn_above_each_other() -> None:
    one = (use("write", t=1), use("written", t=3), {**BARRIER, "t": 5}, use("read", t=7))
    other = (use("write", t=2), use("written", t=4), {**BARRIER, "t": 6}, use("read", t=8))

    assert lines("files", of_ranks(one, other))[2:] == ["model.pt", "  rank 0  WWW │R", "  rank 1   WWW│ R"]


def test_a_rank_that_is_late_for_a_collective_is_drawn_before_it() -> None:
    """A broadcast lets its source go on before the others have come."""
    source = ({**BARRIER, "t": 1}, use("write", t=2), use("written", t=3))
    late = (use("read", t=4), {**BARRIER, "t": 5})

    assert lines("files", of_ranks(source, late))[2:] == ["model.pt", "  rank 0   │WW", "  rank 1  R│"]


def test_files_of_the_program_are_left_out_and_renamed_ones_have_two_names() -> None:
    unfinished, program = "/run/shared/model.tmp", ["/home/ada/09/harness.py", 3]
    writer = (
        use("write", unfinished),
        use("written", unfinished),
        use("rename", unfinished, to=SHARED),
        use("read", at=program),
    )

    assert lines("files", of_ranks(writer, ()))[2:] == [
        *("model.tmp", "  rank 0  WW", "  rank 1"),
        *("model.pt", "  rank 0    N", "  rank 1"),
    ]
    assert lines("files", of_ranks((), ())) == []


FIRST, LATER = "f" * 16, "a" * 16


def trained(
    steps: int, *, every: int = 0, began: float = 0.0, weights: str = FIRST, state: bool = False, reads: str = ""
) -> Observed:
    """Return a round of one rank that made these steps, and wrote its file every so many."""
    tensors = [["parameter", 0, "weight"], *([["optimizer state", 0, "weight: momentum"]] if state else [])]
    rows = [[*each, [1], "float32", "cpu"] for each in tensors]
    records: list[dict[str, Any]] = [use("read", reads)] if reads else []
    records.append({"kind": "tensor-table", "optimizer": 0, "table": 0, "rows": rows})
    records.append(
        {"kind": "tensor-hashes", "optimizer": 0, "nth": 0, "table": 0, "hashes": [weights, "m" * 16][: len(rows)]}
    )
    for step in range(1, steps + 1):
        records.append({"kind": "ddp-forward", "ddp": 0, "group": [0]})
        records.append({"kind": "optimizer-step", "step": step, "optimizer": 0, "nth": step})
        records += [use("write"), use("written")] if every and step % every == 0 else []
    return of_ranks([{**each, "t": began + number} for number, each in enumerate(records)])


LOST = {0: "node-1 was lost"}


def bars(*rounds: Observed) -> list[str]:
    """Return the bars of rounds, of which all but the last ended early."""
    numbered = dict(enumerate(rounds))
    drawn = lines("rounds", rounds=numbered, endings=dict.fromkeys([*numbered][:-1], "node-1 was lost"))
    return [line[9:] for line in drawn if line.startswith("round ")]


def test_a_round_goes_on_from_the_file_that_it_read_and_repeats_what_came_after_it() -> None:
    first = trained(7, every=5)
    later = trained(5, every=5, began=100, weights=LATER, reads=SHARED)

    found = rounds_of({0: first, 1: later})

    assert [(each.began, each.steps, each.again, each.saves, each.saved) for each in found] == [
        (0, 7, 0, (5,), 0),
        (5, 5, 2, (10,), 5),
    ]
    assert bars(first, later) == ["━━━━━━━✘", "     ▒▒━━━"]
    drawn = lines("rounds", rounds={0: first, 1: later}, endings=LOST)
    assert [line for line in drawn if set(line) <= {"S", " "}] == [f"{'S':>14}", f"{'S':>19}"]
    assert sum("node-1 was lost" in line for line in drawn) == 1


def test_a_round_that_read_nothing_or_did_not_load_what_it_read_begins_anew() -> None:
    first = trained(7, every=5)
    for again in (trained(9, began=100), trained(9, began=100, reads=SHARED)):
        assert bars(first, again) == ["━━━━━━━✘", "▒▒▒▒▒▒▒━━"]
        assert rounds_of({0: first, 1: again})[1].is_fresh


def test_where_a_round_went_on_is_not_claimed_if_it_was_not_seen() -> None:
    first, elsewhere = trained(7, every=5), trained(4, began=100, weights=LATER, reads="/data/other.pt")

    later = trained(2, began=200, weights="b" * 16, reads=SHARED)
    unknown = trained(4, every=2, began=100, weights=LATER)  # and so is what reads its file

    assert rounds_of({0: first, 1: elsewhere})[1].began is None
    assert [each.began for each in rounds_of({0: first, 1: unknown, 2: later})] == [0, None, None]
    assert bars(first, elsewhere) == ["━━━━━━━✘", ""]


def test_a_file_that_torch_save_did_not_complete_is_no_save() -> None:
    """Rank 0 died in the save after step 10."""
    first = trained(10, every=5)
    records = first.ranks[0].records
    torn = Observed(ranks={0: replace(first.ranks[0], records=records[:-1])})

    assert rounds_of({0: torn, 1: trained(5, began=100, weights=LATER, reads=SHARED)})[1].began == 5


def test_no_save_is_claimed_if_later_ones_may_be_missing() -> None:
    """Without collectives, the second save of a file is not recorded."""
    steps = [{"kind": "optimizer-step", "step": step, "optimizer": 0, "nth": step} for step in range(1, 8)]
    alone = of_ranks((*steps[:2], use("write"), use("written"), *steps[2:]))

    found = rounds_of({0: alone, 1: trained(3, began=100, weights=LATER, reads=SHARED)})

    assert [(each.steps, each.saves, each.began) for each in found] == [(7, (), 0), (3, (), None)]


def test_of_several_files_the_newest_is_taken_and_of_a_second_training_nothing() -> None:
    first = trained(6, every=2)
    other = "/run/shared/other.pt"
    reads = [use("read", other, t=90), *({"kind": "file-use", "op": "read", "path": SHARED, "t": 91} for _ in range(1))]
    later = [*reads, {"kind": "optimizer-step", "step": 1, "optimizer": 0, "nth": 1, "t": 92}]
    anew = [
        {"kind": "optimizer-step", "step": step, "optimizer": 1, "nth": step - 1, "t": 90 + step} for step in (3, 4)
    ]
    saves = [use("write", other, t=99), use("written", other, t=99.5)]

    found = rounds_of({0: first, 1: of_ranks([*later, *anew, *saves])})[1]

    assert (found.began, found.steps, found.saves) == (6, 1, ())


def test_an_optimizer_without_its_state_is_noticed_only_if_it_has_one_later() -> None:
    first = trained(7, every=5, state=True)

    def lacks(**fields: Any) -> bool:
        return rounds_of({0: first, 1: trained(3, began=100, weights=LATER, reads=SHARED, **fields)})[1].lacks_state

    assert lacks()
    assert not lacks(state=True)
    assert not rounds_of({0: trained(7), 1: trained(7)})[1].lacks_state


def test_a_long_run_has_several_steps_in_a_column() -> None:
    assert bars(trained(600, every=50)) == ["━" * 60]
    assert lines("rounds", rounds={0: trained(600)})[1].split() == ["step", "100", "200", "300", "400", "500", "600"]


def test_a_round_ends_for_the_reason_that_the_next_one_or_the_master_gives() -> None:
    def event(kind: str, generation: int, **data: Any) -> Event:
        return Event(t=0.0, kind=kind, node="master", generation=generation, data=data)

    lost = [event("round", 0, because=""), event("round", 1, because="node-1 was lost")]
    assert endings_of([*lost, event("ended", 1, passed=True, reason="all nodes are done")]) == LOST
    assert endings_of([*lost, event("ended", 1, passed=False, reason="rank 0 ended\n…")]) == {**LOST, 1: "rank 0 ended"}


def test_a_run_without_a_step_has_no_rounds_to_draw() -> None:
    assert lines("rounds", rounds={0: of_ranks(())}) == []
    assert lines("rounds") == []
