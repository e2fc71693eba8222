"""Test when a run is interrupted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from compose_sim.core.events.observations import Observed, RankObserved
from compose_sim.node.records.devices_and_files import FileUse
from compose_sim.node.records.record import Record
from compose_sim.node.records.resumption import HeldState, StateMoved
from compose_sim.plugins.resume.core.checkpoints import Checkpoint, choose_interruption, find_checkpoints, last_named


def checkpoint(step: int, *files: str) -> Checkpoint:
    return Checkpoint(step=step, files=files or ("last.pt",), ranks=(0,))


def test_it_is_a_few_steps_after_a_complete_checkpoint() -> None:
    chosen = choose_interruption((checkpoint(0), checkpoint(10), checkpoint(20)), 30)

    assert (chosen.step, chosen.checkpoint) == (13, checkpoint(10))


def test_it_is_between_two_checkpoints_that_are_close() -> None:
    chosen = choose_interruption((checkpoint(2), checkpoint(4), checkpoint(6)), 7)

    assert (chosen.step, chosen.checkpoint) == (3, checkpoint(2))


def test_it_is_in_the_middle_of_a_later_epoch_if_possible() -> None:
    saved = tuple(checkpoint(step) for step in range(3, 20, 3))

    assert choose_interruption(saved, 20, epochs=[step // 6 for step in range(20)]).checkpoint == checkpoint(9)
    assert choose_interruption(saved, 20, epochs=[0] * 20).checkpoint == checkpoint(3)


def test_it_is_after_one_whose_name_comes_before_that_of_an_older_one() -> None:
    saved = tuple(checkpoint(step, f"step_{step}.pt") for step in range(3, 16, 3))

    assert choose_interruption(saved, 17).checkpoint == checkpoint(12, "step_12.pt")


def test_it_is_after_one_amid_an_accumulation() -> None:
    amid = replace(checkpoint(6), is_amid=True)

    assert choose_interruption((checkpoint(2), checkpoint(4), amid, checkpoint(8)), 9).checkpoint == amid


def test_the_user_chooses_the_step() -> None:
    chosen = choose_interruption((checkpoint(2), checkpoint(4), checkpoint(6)), 9, at_step=5)

    assert (chosen.step, chosen.checkpoint) == (5, checkpoint(4))


def test_before_the_first_checkpoint_there_is_nothing_to_resume() -> None:
    chosen = choose_interruption((checkpoint(6),), 9, at_step=5)

    assert (chosen.checkpoint, "5 steps" in chosen.why_not) == (None, True)


def test_a_checkpoint_of_the_last_step_leaves_nothing_to_compare() -> None:
    chosen = choose_interruption((checkpoint(9),), 9)

    assert chosen.checkpoint is None
    assert "step 9" in chosen.why_not


def stepped(step: int) -> HeldState:
    return HeldState(moment="step", step=step, optimizer=0, table=0, sketches=(), groups=(), batches=())


def observed(*records: Record) -> Observed:
    return Observed(ranks={0: RankObserved(rank=0, node="node-0", records=records)})


def saved(path: str, line: int | None) -> StateMoved:
    return StateMoved("file", loaded=False, path=path, at=("train.py", line) if line else None)


@pytest.mark.parametrize("is_over", [True, False])  # or the run was interrupted while the thread waited for other ranks
def test_what_a_thread_writes_holds_the_state_of_the_call(is_over: bool) -> None:
    run = observed(
        stepped(0),
        saved("/run/last", 9),
        stepped(1),
        FileUse("write", "/run/last/__0_0.distcp"),
        *([saved("/run/last", None)] if is_over else []),
    )

    (found,) = find_checkpoints(run, {}, least=1 << 62)

    assert (found.step, found.files) == (1, ("/run/last", "/run/last/__0_0.distcp"))


@pytest.mark.parametrize(("late", "named"), [(True, 1), (False, None)])
def test_the_last_checkpoint_is_not_named_yet_if_names_come_later_than_the_state(late: bool, named: int | None) -> None:
    name = FileUse("write", "/run/latest", at=("train.py", 8))
    run = observed(stepped(0), *([] if late else [name]), stepped(1), *([name] if late else []))
    checkpoints = tuple(checkpoint(step, f"/run/step_{step}") for step in (1, 2))

    assert last_named(run, checkpoints, ["/run/latest"]) == named


def found(*ranks: list[Record]) -> list[tuple[int, tuple[str, ...]]]:
    observed = {
        rank: RankObserved(rank=rank, node="node-0", records=tuple(records)) for rank, records in enumerate(ranks)
    }
    return [(each.step, each.files) for each in find_checkpoints(Observed(ranks=observed), {}, least=1 << 62)]


def test_files_have_the_names_that_they_are_given_next() -> None:
    records: list[Record] = []
    for number in range(2):
        records += [
            stepped(number),
            FileUse("write", "/run/new.pt"),
            FileUse("rename", "/run/new.pt", to=f"/run/{number}.pt"),
        ]

    assert found(records) == [(1, ("/run/0.pt",)), (2, ("/run/1.pt",))]


def test_files_are_in_the_folder_that_another_rank_renames() -> None:
    first: list[Record] = []
    other: list[Record] = []
    for number in range(2):
        written = [stepped(number), FileUse("write", "/run/new/model.pt")]
        first += [*written, FileUse("rename", "/run/new", to=f"/run/step-{number}")]
        other += [stepped(number), FileUse("write", "/run/new/rank-1.pt")]

    assert found(first, other) == [
        (number + 1, (f"/run/step-{number}/model.pt", f"/run/step-{number}/rank-1.pt")) for number in range(2)
    ]
