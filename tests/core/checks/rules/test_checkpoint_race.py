"""Files that two ranks write at once, or read unfinished, fail; files that collectives, locks or names separate pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from compose_sim.core.checks import FAILED, NOT_APPLICABLE, PASSED, WARNED, Result
from compose_sim.core.checks.rules.checkpoints import checkpoint_race
from compose_sim.node.records.precautions import SavedShards
from compose_sim.node.records.process_groups import InitProcessGroup, UntrackedWait
from compose_sim.node.records.record import Record
from tests.core.checks.rules.cluster import WORLD, at, collective, file, two_nodes

BARRIER = collective("barrier")


def test_two_writers_fail_and_local_ranks_are_recognized() -> None:
    assert checkpoint_race.judge(two_nodes(lambda rank: [file("write")])).ranks == (0, 1, 2, 3)
    result = checkpoint_race.judge(two_nodes(lambda rank: [file("write")] if rank % 2 == 0 else []))
    assert (result.status, result.ranks) == (FAILED, (0, 2))
    assert "those with LOCAL_RANK 0" in result.detail


def test_turns_names_appending_and_a_folder_a_node_pass() -> None:
    turns = two_nodes(lambda rank: [*([BARRIER] * rank), file("write"), *([BARRIER] * (4 - rank))])
    assert checkpoint_race.judge(turns).status == PASSED
    assert checkpoint_race.judge(two_nodes(lambda rank: [file("write", f"/work/{rank}.pt")])).status == PASSED
    assert checkpoint_race.judge(two_nodes(lambda rank: [file("append")])).status == NOT_APPLICABLE
    assert (
        checkpoint_race.judge(two_nodes(lambda rank: [file("write", "/tmp/a.pt")] if rank % 2 == 0 else [])).status
        == PASSED
    )


def test_reading_needs_a_collective_after_the_writing() -> None:
    early = checkpoint_race.judge(two_nodes(lambda rank: [BARRIER, file("write") if rank == 0 else file("read")]))
    assert early.status == FAILED
    assert "reads /work/model.pt (train.py, line 9)" in early.detail
    late = two_nodes(lambda rank: [file("write"), BARRIER] if rank == 0 else [BARRIER, file("read")])
    assert checkpoint_race.judge(late).status == PASSED


def test_what_messages_order_is_not_judged() -> None:
    assert (
        checkpoint_race.judge(
            two_nodes(lambda rank: [file("write")] if rank == 0 else [UntrackedWait("recv"), file("read")])
        ).status
        == PASSED
    )


def test_to_wait_for_a_name_is_enough_only_where_the_file_is_whole_by_then() -> None:
    waits = [UntrackedWait("sleep"), file("await"), file("read", polls=True)]
    early = checkpoint_race.judge(two_nodes(lambda rank: [file("write")] if rank == 0 else waits))
    assert early.status == FAILED
    assert "as soon as it exists" in early.detail
    renamed = [file("write", "/work/part"), file("rename", "/work/part", to="/work/model.pt")]
    assert checkpoint_race.judge(two_nodes(lambda rank: renamed if rank == 0 else waits)).status == PASSED
    marked = [*waits[:1], file("await", "/work/done"), *waits[2:]]
    assert checkpoint_race.judge(two_nodes(lambda rank: [file("write")] if rank == 0 else marked)).status == PASSED


def test_a_rank_that_asks_too_early_and_goes_on_without_the_file_warns() -> None:
    def asking(*others: Record, first: Sequence[Record] = ()) -> Result:
        reading = [*first, file("write"), file("read"), BARRIER]
        return checkpoint_race.judge(two_nodes(lambda rank: reading if rank == 0 else others))

    result = asking(file("miss"), BARRIER)
    assert (result.status, result.ranks) == (WARNED, (0, 1))
    assert asking(BARRIER, file("read")).status == PASSED
    assert asking(file("miss"), BARRIER, file("read")).status == PASSED
    assert asking(file("miss"), BARRIER, BARRIER, first=[BARRIER]).status == PASSED
    assert asking(file("miss", polls=True), BARRIER).status == PASSED


def test_a_folder_that_another_rank_makes_needs_a_barrier_or_a_look() -> None:
    def saving(*before: Record, path: str = "/work/step-4/1.pt") -> Result:
        made = [file("mkdir", "/work/step-4"), file("write", "/work/step-4/0.pt"), BARRIER]
        saved = [*before, file("write", path), *([] if BARRIER in before else [BARRIER])]
        return checkpoint_race.judge(two_nodes(lambda rank: [made, saved, [BARRIER], [BARRIER]][rank]))

    result = saving()
    assert (result.status, result.ranks) == (WARNED, (0, 1))
    assert saving(BARRIER).status == PASSED
    assert saving(file("isdir", "/work/step-4")).status == PASSED
    assert saving(file("mkdir", "/work/step-4")).status == PASSED
    assert saving(path="/work/step-4-1.pt").status == PASSED


def test_a_folder_that_is_made_before_ranks_join_is_there_afterwards() -> None:
    joins = InitProcessGroup()
    made = [file("mkdir", "/work/logs"), joins, BARRIER]
    early = two_nodes(lambda rank: made if rank == 0 else [joins, file("write", f"/work/logs/{rank}"), BARRIER])
    late = two_nodes(
        lambda rank: [joins, *made[::2]] if rank == 0 else [joins, file("write", f"/work/logs/{rank}"), BARRIER]
    )

    assert checkpoint_race.judge(early).status == PASSED
    assert checkpoint_race.judge(late).status == WARNED


@pytest.mark.parametrize(("savers", "status"), [((0,), FAILED), ((0, 1), PASSED), (WORLD, PASSED)])
def test_shards_are_whole_only_if_all_of_them_are_saved(savers: tuple[int, ...], status: str) -> None:
    """Two replicas of a model in two parts: those of one replica are enough."""
    saved = SavedShards(4, "layer.weight", 2, ("/work/train.py", 12))
    result = checkpoint_race.judge(
        two_nodes(lambda rank: [file("write", f"/work/{rank}.pt"), *([saved] if rank in savers else [])]),
    )

    assert result.status == status
    assert (at(result) == ("/work/train.py", 12)) == (status == FAILED)


@pytest.mark.parametrize(
    ("contents", "steps", "names", "status"),
    [
        ((5, 6), (3, 3), ("last.pt", "last.pt"), FAILED),
        ((5, 5), (3, 3), ("last.pt", "last.pt"), PASSED),  # copies
        ((5, 6), (3, 3), ("0.pt", "1.pt"), PASSED),
        ((5, 6), (3, 4), ("last.pt", "last.pt"), PASSED),
    ],
)
def test_ranks_that_rename_other_tensors_to_one_name_lose_those_of_all_but_one(
    contents: tuple[int, int], steps: tuple[int, int], names: tuple[str, str], status: str
) -> None:
    def records(rank: int) -> list[Record]:
        if rank > 1:
            return [BARRIER]
        scratch = f"/work/{rank}.tmp"
        saved = replace(file("written", scratch), content=contents[rank], steps=steps[rank])
        renamed = replace(file("rename", scratch), to=f"/work/{names[rank]}", steps=steps[rank])
        return [file("write", scratch), saved, renamed, BARRIER]

    result = checkpoint_race.judge(two_nodes(records))

    assert result.status == status
    assert result.ranks == ((0, 1) if status == FAILED else ())
