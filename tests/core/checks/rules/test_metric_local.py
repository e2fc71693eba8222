"""Numbers of one rank only, and lines that every node prints, warn; reduced, labeled and complete ones pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from compose_sim.core.checks import PASSED, WARNED
from compose_sim.core.checks.rules.metrics import metric_local
from compose_sim.core.events.observations import Observed
from compose_sim.node.records.data import Batch, EpochProgress, LoaderInfo, Sampling
from compose_sim.node.records.devices_and_files import FileUse, TrainerLibraries
from compose_sim.node.records.models import EvaluatedModel, LossValue
from compose_sim.node.records.record import Record
from compose_sim.node.records.replays import EvaluationDraws
from compose_sim.node.records.script import ScriptEnd
from tests.core.checks.rules.cluster import at, collective, observe, two_nodes
from tests.core.checks.rules.replays import step as replayed_step
from tests.core.checks.rules.replicas import step

VALUES = (0.91234, 0.70111, 0.50777, 0.32345)
MEANS = tuple(value + 0.015 for value in VALUES)


def losses(rank: int) -> list[Record]:
    return [*(LossValue(value + rank / 100) for value in VALUES), collective("all_reduce", 1)]


def said(values: Sequence[float], text: str = "loss {:.5f}") -> tuple[str, ...]:
    return tuple(text.format(value) for value in values)


def test_the_loss_of_steps_is_not_judged() -> None:
    assert metric_local.judge(two_nodes(losses, logs={0: said(VALUES)})).status == PASSED
    assert metric_local.judge(two_nodes(losses, logs={0: said([sum(VALUES) / 4])})).status == PASSED


def test_lines_of_the_first_rank_of_every_node_warn() -> None:
    result = metric_local.judge(two_nodes(losses, logs={0: said(MEANS), 2: said(MEANS)}))
    assert (result.status, result.ranks) == (WARNED, (0, 2))


def test_an_accuracy_of_a_share_warns() -> None:
    share = LoaderInfo(1, "Pictures", made=("/work/t.py", 4), sampling=Sampling(num_replicas=4))
    passage = [EpochProgress(1, 0, "begun"), EpochProgress(1, 0, "exhausted")]
    end = ScriptEnd(steps=4)
    logs = {0: ("validation accuracy 0.812",)}
    assert at(metric_local.judge(two_nodes(lambda rank: [share, *passage, end], logs=logs))) == ("/work/t.py", 4)
    assert (
        metric_local.judge(
            two_nodes(lambda rank: [share, *passage, collective("all_reduce", 2), end], logs=logs)
        ).status
        == PASSED
    )


def test_ranks_may_give_each_other_results_in_files() -> None:
    share = LoaderInfo(1, "Pictures", made=("/work/t.py", 4), sampling=Sampling(num_replicas=4))
    passage = [EpochProgress(1, 0, "begun"), EpochProgress(1, 0, "exhausted")]
    logs = {0: ("validation accuracy 0.812",)}

    def judged(writer: int) -> str:
        def records(rank: int) -> list[Record]:
            uses = [FileUse("write", "/work/part")] if rank == writer else []
            return [share, *passage, *uses, *([FileUse("read", "/work/part")] if rank == 0 else []), ScriptEnd(steps=4)]

        return metric_local.judge(two_nodes(records, logs=logs)).status

    assert judged(writer=3) == PASSED
    assert judged(writer=0) == WARNED, "its own file tells it nothing"


def test_an_evaluation_whose_batches_are_counted_warns_and_what_a_rank_broadcasts_tells_it_nothing() -> None:
    share = LoaderInfo(1, "Pictures", length=32, batch_size=4, sampling=Sampling(num_replicas=4))
    seen = [share, EpochProgress(1, 0, "begun"), Batch(1, 0, 0)]
    stop, end = collective("broadcast", 1, root=0), ScriptEnd(steps=4)
    logs = {0: ("validation accuracy 0.812",)}
    assert (
        metric_local.judge(
            two_nodes(lambda rank: [*seen, stop, end, EpochProgress(1, 0, "closed", batches=2)], logs=logs)
        ).status
        == WARNED
    )
    assert (
        metric_local.judge(
            two_nodes(lambda rank: [*seen, stop, end, EpochProgress(1, 0, "closed", batches=1)], logs=logs)
        ).status
        == PASSED
    )


def test_what_a_library_logs_once_a_node_by_itself_passes() -> None:
    for asks, status in ((True, WARNED), (False, PASSED)):
        libraries = TrainerLibraries(("transformers",), asks)
        case = two_nodes(lambda rank, seen=libraries: [*losses(rank), seen], logs={0: said(MEANS), 2: said(MEANS)})
        assert metric_local.judge(case).status == status


@pytest.mark.parametrize(
    ("value", "reduce", "judged"),
    [(0.625, None, False), (0.625, "AVG", False), (12.0, None, True), (0.625, "MAX", True)],
)
def test_a_number_that_may_be_a_mean_over_unequal_counts_is_said_not_to_be_judged(
    value: float, reduce: str | None, judged: bool
) -> None:
    reduced = collective("all_reduce", 1, values=(value,), reduce=reduce, at=("/work/t.py", 7))
    result = metric_local.judge(two_nodes(lambda rank: [*losses(rank), reduced], logs={0: said(VALUES)}))

    assert result.status == PASSED
    assert ("not judged: whether the ranks' number reduced (t.py, line 7)" in result.detail) is not judged


@pytest.mark.parametrize(
    ("more", "status"),
    [
        ({}, WARNED),
        ({"inputs": "same"}, PASSED),
        ({"held": False}, PASSED),  # a teacher
        ({"exchanged": [collective("all_reduce", 2, values=(3.0, 8.0))]}, PASSED),
        ({"exchanged": [FileUse("write", "/work/part"), FileUse("read", "/work/part")]}, PASSED),
        ({"steps": 1}, PASSED),  # at every step, as in a rollout
    ],
)
def test_an_evaluation_of_own_inputs_without_a_loader_is_that_of_one_rank(more: dict[str, Any], status: str) -> None:
    def records(rank: int) -> list[Record]:
        found: list[Record] = []
        for nth in range(3):
            found += [step(4 * nth + each) for each in range(1, 1 + more.get("steps", 4))]
            inputs, held = more.get("inputs", f"{rank}{nth}"), more.get("held", True)
            found.append(EvaluatedModel("Net", 4 * nth + 4, (), (), held=held, inputs=inputs, at=("/work/t.py", 9)))
            found += more.get("exchanged", [])
        return [*found, ScriptEnd()]

    result = metric_local.judge(two_nodes(records, logs={0: said(VALUES, "val loss {:.5f}")}))

    assert (result.status, at(result)) == (status, ("/work/t.py", 9) if status == WARNED else None)


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        (("val loss 2.750", "val loss 3.750"), WARNED),  # the means of the ranks' means
        (("val loss 2.750", "val loss 4.000"), PASSED),  # once by chance
        (("val loss 3.000", "val loss 4.000"), PASSED),  # over all samples
        (("loss 2.750", "loss 3.750"), PASSED),  # of training steps
    ],
)
def test_a_printed_mean_of_means_over_unequal_counts_warns(lines: tuple[str, ...], status: str) -> None:
    def records(rank: int) -> list[Record]:
        found: list[Record] = []
        for nth in range(2):
            found.append(EpochProgress(1, nth, "exhausted", drawn=(10, 20, 30, 20)[rank]))
            value = 1.25 + nth + rank
            found.append(collective("all_reduce", nth + 1, values=(value,), at=("/work/t.py", 7)))
            found.append(step(nth + 1))
        return [*found, ScriptEnd()]

    result = metric_local.judge(two_nodes(records, logs={0: lines}))

    assert (result.status, at(result)) == (status, ("/work/t.py", 7) if status == WARNED else None)


@pytest.mark.parametrize(
    ("line", "alone", "status"),
    [
        ("epoch {}: accuracy {:.4f}", (0.75, 0.775), WARNED),
        ("epoch {}: accuracy {:.4f}", (0.5, 0.775), PASSED),  # by chance
        ("epoch {}: accuracy {:.4f}", (0.505, 0.605), PASSED),  # what is left of uneven batches
        ("epoch {}: train accuracy {:.4f}, val took 3 s", (0.75, 0.775), PASSED),  # of the rank's own batches
        ("epoch {}: eval time {:.4f}", (0.75, 0.775), PASSED),
        ("epoch {}: best accuracy {:.4f}", (0.75, 0.775), PASSED),  # of evaluations that may be too few to compare
        ("epoch {}: macro_recall {:.4f}", (0.505, 0.605), WARNED),  # no mean, of which uneven batches leave nothing
        ("epoch {}: val loss {:.4f} bf16", (0.505, 0.605), PASSED),  # no F1 score
        ("epoch {}: accuracy {:.1f}", (0.75, 0.775), PASSED),  # too few digits
        ("[rank 0] epoch {}: accuracy {:.4f}", (0.75, 0.775), PASSED),
        ("step {}: {:.4f}", (0.75, 0.775), PASSED),  # it does not name an evaluation
    ],
)
def test_a_printed_evaluation_that_one_rank_does_not_repeat_warns(
    line: str, alone: tuple[float, float], status: str
) -> None:
    seen = EvaluatedModel("Linear", 2, (), (), True, True, at=("/work/t.py", 5))
    trained = [step(1), seen, step(2), ScriptEnd(steps=2)]
    printed = tuple(line.format(*each) for each in enumerate((0.5, 0.6)))
    of_one = tuple(line.format(*each) for each in enumerate(alone))
    single = Observed(ranks={0: observe(0, [replayed_step(0)])})
    found = replace(two_nodes(lambda _: trained, logs={0: printed}), single=single, single_log=of_one)

    result = metric_local.judge(found)

    if status == WARNED:
        assert (result.status, at(result), result.ranks) == (WARNED, ("/work/t.py", 5), (0,))
    else:
        assert result.status != WARNED
    uneven = two_nodes(
        lambda _: [LoaderInfo(1, "Words", batch_size=4), EpochProgress(1, 0, "exhausted", drawn=9), *trained],
        logs={0: printed},
    )
    judged = metric_local.judge(replace(uneven, single=single, single_log=of_one))
    assert (judged.status == WARNED) == (status == WARNED and "macro" in line)
    for other in (
        replace(found, single=Observed(ranks={0: observe(0, [replayed_step(0, difference=0.5)])})),  # other weights
        replace(found, logs={0: printed, 1: printed}),  # each rank may report its own
        replace(two_nodes(lambda _: [*trained, EvaluationDraws(("torch",))], logs={0: printed}), single=single),
        replace(
            found, single=Observed(ranks={0: observe(0, [replayed_step(0), EpochProgress(1, 0, "exhausted", drawn=9)])})
        ),
    ):
        assert metric_local.judge(replace(other, single_log=of_one)).status != WARNED


@pytest.mark.parametrize(
    ("line", "apart", "count", "status"),
    [
        ("held out AUC {:.4f}", 0.05, 2, WARNED),
        ("loss 0.4312 macro_f1={:.1%}", 0.05, 2, WARNED),
        ("val F1 {:.4f}", 0.05, 2, PASSED),  # a mean over questions
        ("mean AUC of 2 folds: {:.4f}", 0.05, 2, PASSED),
        ("[r2] val loss {:.4f}", 0.05, 2, PASSED),  # the name of a rank
        ("held out AUC {:.4f}", 0.05, 1, PASSED),  # by chance
        ("held out AUC {:.4f}", 0.0, 2, PASSED),  # each rank has that of all samples
        ("recall@10 {:.4f}", 0.05, 2, PASSED),  # a mean over users
        ("loss {:.4f} AUC 0.7312", 0.05, 2, PASSED),  # another number
        ("score: gauc {:.4f}", 0.05, 2, PASSED),  # a mean over groups
    ],
)
def test_the_mean_of_what_is_no_mean_over_samples_warns(line: str, apart: float, count: int, status: str) -> None:
    means = (0.71345, 0.75123)[:count]

    def records(rank: int) -> list[Record]:
        found: list[Record] = []
        for nth, mean in enumerate(means):
            found.append(EpochProgress(1, nth, "exhausted", drawn=8))
            found.append(collective("all_reduce", values=(mean + apart * (rank - 1.5),), at=("/work/t.py", 7)))
            found.append(step(nth + 1))
        return [*found, ScriptEnd()]

    result = metric_local.judge(two_nodes(records, logs={0: tuple(line.format(each) for each in means)}))

    assert (result.status, at(result)) == (status, ("/work/t.py", 7) if status == WARNED else None)
