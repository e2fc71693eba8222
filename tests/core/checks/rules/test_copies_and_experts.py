"""Copies of the weights that some ranks leave behind, experts that wrapping makes equal, and means of means."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from compose_sim.core.checks.rules.metrics import metric_local
from compose_sim.core.checks.rules.replicas import params_in_sync
from compose_sim.core.checks.rules.wrapping import batchnorm_local
from compose_sim.node.records.data import EpochProgress
from compose_sim.node.records.models import (
    EvaluatedModel,
    TensorHashes,
    TensorRow,
    TensorTable,
    WeightsBeforeWrapping,
)
from compose_sim.node.records.record import Record
from tests.core.checks.rules.cluster import at, case
from tests.core.checks.rules.replicas import AT, all_reduce, ddp, step, table

ROWS = (TensorRow("parameter", None, "weight", (4, 2)), TensorRow("buffer", None, "1.running_mean", (4,)))


def trained(evaluated: str, statistics: str = "s") -> list[Record]:
    """Return the records of a rank whose weight moved from a to b, and that evaluates a model with these hashes."""
    return [
        table("weight", model=None),
        TensorHashes(0, 0, 0, ("a",)),
        step(1),
        TensorHashes(0, 1, 0, ("b",)),
        EvaluatedModel("Net", 1, ROWS, (evaluated, statistics), at=AT),
    ]


def test_of_two_models_on_one_line_the_one_that_was_never_updated_is_found() -> None:
    def ranks(average: str) -> dict[int, list[Record]]:
        also = [trained(each)[-1] for each in ("c", average)]
        return {0: [ddp(), *trained("b"), also[0]], 1: [ddp(), *trained("b"), also[1]]}

    assert params_in_sync.judge(case(ranks("c"))).status == "passed"
    result = params_in_sync.judge(case(ranks("a")))
    assert (result.status, result.ranks, at(result)) == ("failed", (1,), AT)


@pytest.mark.parametrize(
    ("drifts", "given", "moved", "wider", "status"),
    [
        (True, True, True, 0, "warned"),
        (False, True, True, 0, "passed"),
        (True, False, True, 0, "warned"),  # equal from the start because of a seed
        (True, False, False, 1, "not-applicable"),  # the first that each stage draws from one seed
        (True, False, False, 0, "warned"),  # with one seed, the next would be equal too
    ],
)
def test_a_tied_weight_of_two_stages_stays_equal(
    drifts: bool, given: bool, moved: bool, wider: int, status: str
) -> None:
    def stage(rank: int) -> list[Record]:
        replica, first = rank // 2, rank % 2 == 0 or not moved
        pair = (2 * replica, 2 * replica + 1)
        rows = [
            TensorRow("parameter", None, name, shape)
            for name, shape in (("0", (6, 2)), ("1", (3 + rank % 2 * wider, 3)))
        ]
        tied = 0 if first else 1
        rows = rows if first else [rows[1]._replace(name="0"), rows[0]._replace(name="1")]
        records: list[Record] = [all_reduce(6, 2, op="broadcast", group=pair)] if given else []
        records.append(TensorTable(0, 0, tuple(rows)))
        for nth in range(3):
            own = f"{nth}{rank % 2}"
            hashes = [own, own]
            hashes[tied] = own if drifts and nth else f"{nth}tied"
            records += [TensorHashes(0, nth, 0, tuple(hashes)), step(nth + 1)]
        return records

    result = params_in_sync.judge(case({rank: stage(rank) for rank in range(4)}))

    assert result.status == status
    if status == "warned":
        assert (at(result), result.ranks) == (AT if given else None, (0, 1))
        assert f"(0 on rank 0, {int(moved)} on rank 1)" in result.detail
    if status == "passed":  # the replicas of each stage are compared
        assert result.detail.startswith("2 of 2 tensors compared")


@pytest.mark.parametrize(
    ("hashes", "status"),
    [
        (("c", "a"), "failed"),  # rank 1 still has the weights of the start
        (("c", "c"), "passed"),
        (("c", "d"), "passed"),  # each rank perturbs its copy, as evolution strategies do
        (("a", "a"), "passed"),  # a frozen teacher
    ],
)
def test_a_copy_is_updated_on_all_ranks_or_none(hashes: tuple[str, str], status: str) -> None:
    result = params_in_sync.judge(case({rank: trained(each) for rank, each in enumerate(hashes)}))

    assert (result.status, result.ranks) == (status, (1,) if status == "failed" else ())


@pytest.mark.parametrize(
    ("weights", "statistics", "status"),
    [("bb", "st", "warned"), ("bb", "ss", "not-applicable"), ("bc", "st", "not-applicable")],
)
def test_statistics_differ_only_between_equal_models(weights: str, statistics: str, status: str) -> None:
    ranks = {rank: trained(*each) for rank, each in enumerate(zip(weights, statistics, strict=True))}

    assert batchnorm_local.judge(case(ranks)).status == status


@pytest.mark.parametrize(
    ("names", "hashes", "status"),
    [
        (("weight", "expert.weight"), ("ax", "ay"), "failed"),
        (("weight", "expert.weight"), ("ax", "by"), "failed"),  # named experts, whatever the seed
        (("weight", "head.weight"), ("ax", "ay"), "warned"),
        (("weight", "head.weight"), ("ax", "by"), "passed"),  # no rank was seeded
        (("weight", "expert.weight"), ("ax", "ax"), "passed"),
    ],
)
def test_experts_that_wrapping_makes_equal(names: tuple[str, ...], hashes: tuple[str, str], status: str) -> None:
    exchange = [all_reduce(4, op="all_to_all_single")] * 4

    assert params_in_sync.judge(case(wrapped_experts(names, hashes, exchange))).status == status


@pytest.mark.parametrize(("roots", "status"), [((0, 1), "failed"), ((0, 0), "passed")])
def test_ranks_exchange_samples_if_each_of_them_scatters(roots: tuple[int, int], status: str) -> None:
    exchange = [all_reduce(4, op="scatter", root=root) for root in roots] * 4  # on gloo, all_to_all with a gradient

    ranks = wrapped_experts(("weight", "expert.weight"), ("ax", "ay"), exchange)

    assert params_in_sync.judge(case(ranks)).status == status


def wrapped_experts(
    names: tuple[str, ...], hashes: tuple[str, str], exchange: Sequence[Record]
) -> dict[int, list[Record]]:
    rows = tuple(TensorRow("parameter", None, name, (4, 2)) for name in names)
    model = ddp()
    return {
        rank: [
            WeightsBeforeWrapping(0, rows, tuple(each)),
            type(model)(0, (0, 1), names=names, at=AT),
            *exchange,
            table(*names),
            *[each for nth in (1, 2) for each in (TensorHashes(0, nth - 1, 0, ("w", "w")), step(nth))],
            TensorHashes(0, 2, 0, ("v", "v")),
        ]
        for rank, each in enumerate(hashes)
    }


@pytest.mark.parametrize(
    ("means", "counts", "more", "status"),
    [
        ((0.5, 0.75), (10, 4), {}, "warned"),
        ((0.5, 0.75), (8, 8), {}, "not-applicable"),  # equal counts
        ((0.513, 0.75), (10, 4), {}, "not-applicable"),  # no share of ten samples
        ((5.0, 3.0), (10, 4), {}, "not-applicable"),  # hits
        ((0.513, 1.75), (10, 4), {"reduce": "AVG"}, "warned"),  # a loss, averaged over ranks
    ],
)
def test_a_mean_of_means(means: tuple[float, ...], counts: tuple[int, ...], more: dict[str, Any], status: str) -> None:
    ranks = {
        rank: [
            step(1),
            EpochProgress(1, 0, "exhausted", batches=2, exhausted=True, drawn=count),
            all_reduce(values=(value,), **more),
        ]
        for rank, (value, count) in enumerate(zip(means, counts, strict=True))
    }

    assert metric_local.judge(case(ranks)).status == status


def helped(
    rank: int, steps: int = 3, *, group: Sequence[int] = (0, 1), moves: bool = False, **more: Any
) -> list[Record]:
    """Return the records of a rank that trains with the help of a model whose first tensor differs between ranks."""
    records: list[Record] = [ddp(group), table("weight")]
    for nth in range(steps):
        own = f"t{rank}{nth if moves else ''}"
        records += [TensorHashes(0, nth, 0, (str(nth),)), step(nth + 1)]
        records.append(EvaluatedModel("Teacher", nth + 1, ROWS, (own, "s"), at=AT, **{"held": False, **more}))
    return records


@pytest.mark.parametrize(
    ("more", "status"),
    [
        ({}, "failed"),
        ({"moves": True}, "failed"),  # an average of weights that began apart
        ({"loaded": True}, "warned"),  # each rank may be meant to have another one
        ({"held": True}, "passed"),  # a model that is trained is compared elsewhere
        ({"wrapped": True}, "passed"),
        ({"steps": 2}, "passed"),
    ],
)
def test_a_model_that_helps_to_train_is_the_same_on_all_ranks(more: dict[str, Any], status: str) -> None:
    result = params_in_sync.judge(case({rank: helped(rank, **more) for rank in range(2)}))

    assert result.status == status
    if status != "passed":
        assert (at(result), result.ranks) == (AT, (0, 1))
        assert "1 of its 1 parameter (weight)" in result.detail


def test_ranks_that_train_different_models_may_have_different_helpers() -> None:
    ranks = {rank: helped(rank // 2, group=(0, 1) if rank < 2 else (2, 3)) for rank in range(4)}

    assert params_in_sync.judge(case(ranks)).status == "passed"
