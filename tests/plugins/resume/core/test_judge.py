"""Judge runs of a training that is made up: every tensor, setting, sample and random state is a function of the step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from compose_sim.core.events.observations import Observed, RankObserved
from compose_sim.node.records.devices_and_files import FileUse
from compose_sim.node.records.record import Record
from compose_sim.node.records.resumption import HeldState, HeldTensor, HeldTensors, SeenBatch, StateMoved, TensorSketch
from compose_sim.plugins.resume.core.checkpoints import Checkpoint, Interruption
from compose_sim.plugins.resume.core.evidence import Ending, Judgement, ThreeRuns
from compose_sim.plugins.resume.core.judge import judge

EPOCH, STEPS, SAVED, CUT = 6, 20, 8, 11  # steps in an epoch, in the whole run, at the checkpoint, at the interruption
RANKS = 2
ROWS = (
    HeldTensor("parameter", "weight"),
    HeldTensor("parameter", "bias"),
    HeldTensor("optimizer state", "weight: exp_avg"),
    HeldTensor("average", "ema: weight"),
    HeldTensor("scaler", "scale"),
)
Change = Callable[[HeldState, int, int], HeldState]  # of a state, at a step, on a rank


def sketch(value: float) -> TensorSketch:
    return TensorSketch(repr(value), abs(value), (value,))


def state(step: int, rank: int) -> HeldState:
    epoch, position = divmod(step, EPOCH)
    indices = tuple(100 * epoch + 10 * position + rank + RANKS * each for each in range(2))
    return HeldState(
        moment="step",
        step=step,
        optimizer=0,
        table=0,
        sketches=tuple(
            sketch(value) for value in (1 + 0.1 * step, 2 - 0.1 * step, 0.5 * step, 1 + 0.01 * step, 64.0 + step)
        ),
        groups=({"lr": 0.1 * 0.9**step},),
        batches=(SeenBatch(0, epoch, indices, indices),),
        backwards=1,
        loss=1 / (1 + step),
        random={"torch": 1000 * rank + step},
        at=("train.py", 7),
    )


def as_it_is(found: HeldState, _: int, __: int) -> HeldState:
    return found


def observed(first: int, last: int, change: Change = as_it_is, *others: Record) -> Observed:
    ranks = {}
    for rank in range(RANKS):
        records: list[Record] = [*others, HeldTensors(0, ROWS)]
        for number, step in enumerate(range(first, last)):
            records.append(replace(change(state(step, rank), step, rank), step=number))
        ranks[rank] = RankObserved(rank=rank, node="node-0", records=tuple(records))
    return Observed(ranks=ranks)


def interrupted(change: Change = as_it_is, *, saved: tuple[int, ...] = (SAVED,)) -> Observed:
    found = observed(0, CUT, change)
    ranks = {}
    for rank, each in found.ranks.items():
        records = [*each.records]
        for step in sorted(saved, reverse=True):
            records.insert(1 + step, FileUse("write", f"/run/step-{step}.pt", at=("train.py", 9)))
        ranks[rank] = replace(each, records=tuple(records))
    return Observed(ranks=ranks)


def judged(
    change: Change = as_it_is, *, first: int = SAVED, saved: tuple[int, ...] = (SAVED,), **more: Any
) -> Judgement:
    checkpoint = Checkpoint(step=SAVED, files=(f"/run/step-{SAVED}.pt",), ranks=(0, 1), at=("train.py", 9))
    read = StateMoved("file", loaded=True, path=f"/run/step-{first}.pt", names=("model",), at=("train.py", 3))
    evidence = ThreeRuns(
        whole=observed(0, STEPS),
        interrupted=interrupted(saved=saved),
        resumed=observed(first, STEPS, change, *([read] if first else [])),
        interruption=Interruption(step=CUT, checkpoint=checkpoint),
        ending=Ending(verdict="passed"),
    )
    return judge(replace(evidence, **more))


def with_tensor(index: int, value: float | None = None) -> Change:
    """Return a change of one tensor at the first step after the resume; without a value, it is that of the start."""

    def change(found: HeldState, step: int, rank: int) -> HeldState:
        wrong = state(0, rank).sketches[index] if value is None else sketch(value)
        sketches = tuple(wrong if each == index else it for each, it in enumerate(found.sketches))
        return replace(found, sketches=sketches) if step == SAVED else found

    return change


def of_step(shift: Callable[[int], int], *fields: str) -> Change:
    """Return a change after which some fields are those of another step."""
    return lambda found, step, rank: replace(
        found, **{name: getattr(state(shift(step), rank), name) for name in fields}
    )


def of_rank_0(*fields: str) -> Change:
    return lambda found, step, rank: replace(found, **{name: getattr(state(step, 0), name) for name in fields})


def both(*changes: Change) -> Change:
    def change(found: HeldState, step: int, rank: int) -> HeldState:
        for each in changes:
            found = each(found, step, rank)
        return found

    return change


def test_the_same_run_passes() -> None:
    assert judged().status == "passed"


def test_parameters_of_another_step_than_the_optimizer_are_named() -> None:
    newer, older = (with_tensor(2, 0.5 * (SAVED + shift)) for shift in (1, -1))

    assert judged(newer).findings[0].missing == "older-checkpoint"
    assert judged(older).findings[0].missing == "optimizer"
    assert judged(both(older, of_step(lambda step: step - 1, "batches"))).findings[0].missing == "parameters"


def test_the_part_of_rank_0_in_the_place_of_the_own_one_is_named() -> None:
    def parts(found: HeldState, step: int, rank: int) -> HeldState:
        own = sketch(0.5 * step + 100 * rank)
        return replace(found, sketches=tuple(own if each == 2 else it for each, it in enumerate(found.sketches)))

    def loaded(found: HeldState, step: int, rank: int) -> HeldState:
        return parts(found, step, 0 if step == SAVED else rank)

    found = judged(
        loaded, whole=observed(0, STEPS, parts), interrupted=interrupted(parts), resumed=observed(SAVED, STEPS, loaded)
    )

    assert [(each.missing, each.ranks) for each in found.findings] == [("shards", (1,))]


def test_an_optimizer_whose_parameters_have_been_replaced_is_named() -> None:
    resumed = observed(SAVED, STEPS)
    rows = tuple(row._replace(name="0 of group 0") if row.kind == "parameter" else row for row in ROWS)
    lost = {
        rank: replace(each, records=(HeldTensors(0, rows), *each.records[1:])) for rank, each in resumed.ranks.items()
    }

    found = judged(resumed=Observed(ranks=lost))

    assert [each.missing for each in found.findings] == ["optimizer"]
    assert "replaced" in found.text


def test_rounding_passes() -> None:
    def rounded(found: HeldState, step: int, _: int) -> HeldState:
        if step == SAVED:
            return found
        return replace(found, sketches=tuple(sketch(each.sums[0] * (1 + 2e-7)) for each in found.sketches))

    assert judged(rounded).status == "passed"


def test_random_states_that_nothing_depends_on_pass() -> None:
    assert judged(of_step(lambda step: step - SAVED, "random")).status == "passed"


def test_a_checkpoint_at_the_interruption_passes() -> None:
    """As a handler of SIGTERM saves it."""
    assert judged(first=CUT, saved=(SAVED, CUT)).status == "passed"


def test_a_rank_that_was_killed_before_it_noted_its_last_step_has_made_it_nevertheless() -> None:
    """Rank 0 saves and dies; rank 1 is terminated while it still holds the record of that step."""
    cut = interrupted(saved=(CUT,))
    last = cut.ranks[1]
    ranks = {**cut.ranks, 1: replace(last, records=last.records[:-2])}  # the step and the file

    assert judged(first=CUT, interrupted=Observed(ranks=ranks)).status == "passed"


@pytest.mark.parametrize(
    ("change", "missing", "step"),
    [
        (with_tensor(2), "optimizer", SAVED + 1),
        (with_tensor(3, 1.08001), "average", SAVED + 1),
        (with_tensor(4), "scaler", SAVED + 1),
        (with_tensor(1), "parameters", SAVED + 1),
        (of_step(lambda step: step - SAVED, "groups"), "scheduler", SAVED + 1),
        (of_step(lambda step: step if step < SAVED + 3 else step - SAVED, "groups"), "scheduler", SAVED + 4),
        (of_step(lambda step: step - SAVED % EPOCH, "batches"), "sampler-position", SAVED + 1),
        (of_step(lambda step: step - EPOCH if step >= 2 * EPOCH else step, "batches"), "sampler-epoch", 2 * EPOCH + 1),
        (of_step(lambda step: step + 1, "batches", "groups"), "off-by-one", SAVED + 1),
        (of_step(lambda step: step + 1, "batches"), "off-by-one", SAVED + 1),  # the scheduler has a counter of its own
        (of_step(lambda step: step - SAVED, "random", "loss"), "random", SAVED + 1),
        (both(of_rank_0("random"), of_step(lambda step: step + 1, "loss")), "random-of-rank-0", SAVED + 1),
    ],
)
def test_what_differs_first_is_named(change: Change, missing: str, step: int) -> None:
    found = judged(change)

    assert found.status == "failed"
    assert (found.findings[0].missing, found.findings[0].step) == (missing, step)
    assert found.findings[0].at is not None


def test_only_the_ranks_concerned_are_named() -> None:
    found = judged(of_rank_0("batches"))

    assert (found.findings[0].missing, found.findings[0].ranks) == ("sampler-rank", (1,))


def test_the_line_that_reads_the_checkpoint_is_named_and_not_that_of_pretrained_weights() -> None:
    pretrained = StateMoved("module", loaded=True, path="/elsewhere/base.pt", at=("train.py", 2))
    read = StateMoved("file", loaded=True, path=f"/run/step-{SAVED}.pt", names=("model",), at=("train.py", 3))
    resumed = observed(SAVED, STEPS, of_rank_0("batches"), pretrained, read)

    assert judged(resumed=resumed).findings[0].at == ("train.py", 3)


def test_what_follows_is_not_listed() -> None:
    def diverging(found: HeldState, step: int, _: int) -> HeldState:
        if step == SAVED:
            return found
        return replace(found, sketches=tuple(sketch(3 * each.sums[0]) for each in found.sketches), loss=9.0)

    found = judged(both(with_tensor(2), diverging))

    assert [each.missing for each in found.findings] == ["optimizer"]


def test_samples_that_the_script_makes_may_depend_on_a_model_that_differs() -> None:
    def made(found: HeldState, _: int, __: int) -> HeldState:
        return replace(found, batches=tuple(each._replace(loader=-1, indices=None) for each in found.batches))

    def of_the_model(found: HeldState, step: int, rank: int) -> HeldState:
        found = made(found, step, rank)
        rows = tuple(each._replace(rows=(7_000 + step,)) for each in found.batches)
        return found if step <= SAVED else replace(found, batches=rows)

    first = judged(both(with_tensor(2), of_the_model), whole=observed(0, STEPS, made), interrupted=interrupted(made))
    alone = judged(of_the_model, whole=observed(0, STEPS, made), interrupted=interrupted(made))

    assert [each.missing for each in first.findings] == ["optimizer"]
    assert [each.missing for each in alone.findings] != []


def test_another_scale_may_skip_another_step_with_its_batches() -> None:
    def whole(found: HeldState, step: int, rank: int) -> HeldState:
        batches = (*state(step, rank).batches, *state(step + 1, rank).batches)
        return replace(found, batches=batches) if step == SAVED else found

    def later(found: HeldState, step: int, rank: int) -> HeldState:
        return replace(found, batches=state(step + 1, rank).batches) if step == SAVED else found

    found = judged(both(with_tensor(4), later), whole=observed(0, STEPS, whole), interrupted=interrupted(whole))

    assert [each.missing for each in found.findings] == ["scaler"]


def with_random(number: int) -> Change:
    """Return a change by which a generator that nothing draws from has this state."""
    return lambda found, *_: replace(found, random={**(found.random or {}), "python": number})


def of_other_samples(found: HeldState, step: int, rank: int) -> HeldState:
    """Change samples to those that no step has, in the second epoch after the resume."""
    batch = found.batches[0]
    other = tuple(1000 + each for each in batch.indices or ())
    return replace(found, batches=(batch._replace(indices=other, rows=other),)) if step >= 2 * EPOCH else found


def test_an_order_from_an_unknown_generator_is_not_blamed_on_one_without_a_seed() -> None:
    runs = {
        "whole": observed(0, STEPS, with_random(1)),
        "interrupted": observed(0, CUT, with_random(2)),
    }
    found = judged(both(with_random(3), of_other_samples), **runs)

    assert [each.missing for each in found.findings] == ["random"]
    assert "python" not in found.text


def test_samples_of_two_steps_in_one_are_a_wrong_position() -> None:
    def change(found: HeldState, step: int, rank: int) -> HeldState:
        batches = [state(each, rank).batches[0].indices or () for each in (step - 1, step)]
        shifted = (batches[0][1], batches[1][0])
        return replace(found, batches=(found.batches[0]._replace(indices=shifted, rows=shifted),))

    assert judged(change).findings[0].missing == "sampler-position"


def test_an_average_that_begins_again_at_the_first_step_is_named() -> None:
    def change(found: HeldState, step: int, rank: int) -> HeldState:
        average = None if step == SAVED else sketch(1 + 0.1 * step)
        return replace(found, sketches=(*found.sketches[:3], average, *found.sketches[4:]))

    found = judged(change)

    assert [(each.missing, each.step) for each in found.findings] == [("average", SAVED + 2)]


def test_all_steps_once_more_are_a_wrong_counter() -> None:
    resumed = observed(
        0, STEPS, lambda found, step, rank: replace(state(step + SAVED, rank), batches=found.batches, step=step)
    )

    found = judged(resumed=resumed)

    assert (found.findings[0].missing, found.findings[0].step) == ("off-by-one", SAVED + 1)


def test_two_missing_states_are_both_named() -> None:
    found = judged(both(with_tensor(2), of_step(lambda step: step - SAVED, "groups")))

    assert [each.missing for each in found.findings] == ["optimizer", "scheduler"]


def test_a_start_from_scratch_is_no_resume() -> None:
    found = judged(first=0)

    assert found.findings[0].missing == "not-resumed"
    assert "(the first run had saved" in found.text


def test_a_round_that_starts_from_scratch_is_not_said_to_follow_one_that_saved_nothing() -> None:
    found = judged(first=0, is_one_run=True, interruption=Interruption(step=0, checkpoint=None))

    assert found.findings[0].missing == "not-resumed"
    assert "saved" not in found.text


def test_half_a_checkpoint_is_no_start_from_scratch() -> None:
    """Of three parameters, one is restored."""
    rows = (HeldTensor("parameter", "scale"), *ROWS)

    def of_three(found: HeldState, step: int, _: int) -> HeldState:
        return replace(found, sketches=(sketch(3 + step), *found.sketches))

    def half(found: HeldState, step: int, rank: int) -> HeldState:
        start = (sketch(3), *state(0, rank).sketches)
        own = of_three(found, step, rank).sketches
        return replace(found, sketches=(*start[:2], *own[2:]) if step == SAVED else own)

    def with_rows(run: Observed) -> Observed:
        return Observed(
            ranks={
                rank: replace(
                    each,
                    records=tuple(replace(it, rows=rows) if isinstance(it, HeldTensors) else it for it in each.records),
                )
                for rank, each in run.ranks.items()
            }
        )

    read = FileUse("read", f"/run/step-{SAVED}.pt", at=("train.py", 3))
    found = judged(
        whole=with_rows(observed(0, STEPS, of_three)),
        interrupted=with_rows(interrupted(of_three)),
        resumed=with_rows(observed(SAVED, STEPS, half, read)),
        torn=f"step-{SAVED}.pt",
    )

    assert (found.findings[0].missing, found.findings[0].step) == ("parameters", SAVED + 1)
    assert "half written" in found.findings[0].text


def test_a_file_that_is_read_after_the_training_was_not_resumed_from() -> None:
    read = StateMoved("file", loaded=True, step=STEPS, path=f"/run/step-{SAVED}.pt")
    resumed = observed(0, STEPS)
    ranks = {rank: replace(each, records=(*each.records, read)) for rank, each in resumed.ranks.items()}

    found = judged(first=0, resumed=Observed(ranks=ranks))

    assert "read no file" in found.text


def test_an_older_checkpoint_is_named() -> None:
    found = judged(first=4, saved=(4, SAVED))

    assert (found.findings[0].missing, found.findings[0].step) == ("older-checkpoint", 5)


def test_a_run_that_never_saves_is_inconclusive() -> None:
    found = judged(first=0, interruption=Interruption(step=CUT, checkpoint=None, why_not="it saved no checkpoint"))

    assert found.status == "inconclusive"
    assert "it saved no checkpoint" in found.text


def test_a_script_that_is_not_deterministic_is_inconclusive() -> None:
    found = judged(whole=observed(0, STEPS, of_step(lambda step: step + 3, "batches")))

    assert found.status == "inconclusive"
    assert "step 1" in found.text


def test_loaded_state_is_judged_even_if_the_script_is_not_deterministic() -> None:
    found = judged(with_tensor(2), whole=observed(0, STEPS, of_step(lambda step: step + 3, "batches")))

    assert [each.missing for each in found.findings] == ["optimizer"]


def test_an_epoch_that_comes_once_more_is_a_wrong_counter() -> None:
    first = 2 * EPOCH
    resumed = observed(
        first - EPOCH, STEPS, lambda found, step, rank: replace(found, sketches=state(step + EPOCH, rank).sketches)
    )
    read = StateMoved("file", loaded=True, path=f"/run/step-{first}.pt")
    ranks = {rank: replace(each, records=(read, *each.records)) for rank, each in resumed.ranks.items()}
    whole = observed(0, STEPS)
    cut = observed(0, first + 2)

    found = judged(resumed=Observed(ranks=ranks), whole=whole, interrupted=cut)

    assert found.findings[0].missing == "off-by-one"


def test_a_run_that_ends_too_early_has_a_wrong_counter() -> None:
    found = judged(resumed=observed(SAVED, STEPS - 2))

    assert (found.findings[0].missing, found.findings[0].step) == ("off-by-one", STEPS - 1)


def test_a_second_start_without_a_step_fails() -> None:
    found = judged(resumed=Observed(ranks={}))

    assert found.findings[0].missing == "restart-failed"


def test_a_second_start_that_fails_later_is_named_beside_what_it_lacks() -> None:
    found = judged(with_tensor(2), ending=Ending(verdict="failed"))

    assert [each.missing for each in found.findings] == ["optimizer", "restart-failed"]


def test_an_average_may_be_the_one_of_rank_0() -> None:
    """Ranks may have other running statistics in a copy of the model, of which rank 0 saves its own."""

    def of_its_rank(found: HeldState, _: int, rank: int) -> HeldState:
        return replace(found, sketches=(*found.sketches[:3], sketch(7.0 + rank), *found.sketches[4:]))

    def of_rank_0(found: HeldState, step: int, rank: int) -> HeldState:
        return of_its_rank(found, step, 0 if step < SAVED + 2 else rank)

    found = judged(
        whole=observed(0, STEPS, of_its_rank),
        interrupted=interrupted(of_its_rank),
        resumed=observed(SAVED, STEPS, of_rank_0),
    )

    assert found.status == "passed", found.text


def test_a_first_checkpoint_that_was_torn_is_none_to_go_on_from() -> None:
    found = judged(first=0, torn="last.pt", is_torn_first=True)

    assert found.status == "inconclusive"


def test_random_states_that_were_restored_too_early_are_named() -> None:
    """A new iterator draws a number after the state was restored."""
    saved = {rank: state(SAVED - 1, rank).random for rank in range(RANKS)}

    def drawn_once_more(found: HeldState, step: int, rank: int) -> HeldState:
        return replace(found, random={"torch": 5000 + 100 * rank + step}, loss=0.1 * step)

    resumed = observed(SAVED, STEPS, drawn_once_more)
    ranks = {
        rank: replace(
            each, records=(StateMoved("random", loaded=True, random=saved[rank], at=("train.py", 4)), *each.records)
        )
        for rank, each in resumed.ranks.items()
    }

    found = judged(resumed=Observed(ranks=ranks))

    assert [each.missing for each in found.findings] == ["random"]
    assert "drew once more" in found.findings[0].text


def test_a_round_that_repeats_no_step_is_not_judged() -> None:
    """The checkpoint is that of the step after which the fault came, whose state nobody has recorded."""

    def slowly(found: HeldState, step: int, _: int) -> HeldState:
        return replace(found, sketches=(sketch(1 + 1e-4 * step), sketch(2 - 1e-4 * step), *found.sketches[2:]))

    before, after = observed(0, CUT, slowly), observed(CUT, STEPS, slowly)

    found = judged(whole=before, interrupted=before, resumed=after, is_one_run=True)

    assert (found.status, found.findings) == ("inconclusive", ())
