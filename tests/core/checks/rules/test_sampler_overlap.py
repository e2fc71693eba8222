"""Ranks that see the same samples fail, by index or by content; shards and slices do not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pytest

from compose_sim.core.checks import FAILED, NOT_APPLICABLE, PASSED, WARNED
from compose_sim.core.checks.rules.samples import sampler_overlap
from compose_sim.node.records.data import GivenRows, NumberedNames, RandomDraws, Sampling, StreamRead, TrainingForward
from compose_sim.node.records.devices_and_files import TrainerLibraries
from compose_sim.node.records.script import ScriptEnd
from tests.core.checks.rules.cluster import at, case
from tests.core.checks.rules.loading import LINE, epoch, loader
from tests.core.checks.rules.replicas import ddp

DIVIDED = Sampling(num_replicas=2)


def test_equal_indices_fail() -> None:
    result = sampler_overlap.judge(case({rank: [ddp(), loader(), *epoch(range(8))] for rank in range(2)}))
    assert result.status == FAILED
    assert result.detail.startswith(
        "ranks 0 and 1 both saw all 8 samples in epoch 0 of the loader of Pictures (train.py, line 12)"
    )
    assert (at(result), result.ranks) == (LINE, (0, 1))


@pytest.mark.parametrize(
    ("made", "evidence", "fix"),
    [
        (lambda rank: {"samplers": ("RandomSampler",)}, "its samplers: RandomSampler", "DataLoader(data, sampler="),
        (lambda rank: {"iterable": True, "samplers": ()}, "by index", "islice"),
        (
            lambda rank: {"sampling": Sampling(num_replicas=1, rank=0)},
            "num_replicas=1, but 2 ranks train together (ranks 0 and 1 both have rank=0)",
            "`num_replicas`",
        ),
        (lambda rank: {"sampling": Sampling(num_replicas=2, rank=0)}, "rank=0 on both", "`num_replicas`"),
        (
            lambda rank: {"sampling": Sampling(num_replicas=2, rank=rank, shuffle=True, seed=7 + rank)},
            "seed=7 on rank 0 and seed=8 on rank 1",
            "`seed`",
        ),
    ],
)
def test_the_fix_is_that_of_the_wrong_setting(made: Callable[[int], dict[str, Any]], evidence: str, fix: str) -> None:
    result = sampler_overlap.judge(case({rank: [ddp(), loader(**made(rank)), *epoch(range(8))] for rank in range(2)}))

    assert (result.status, evidence in result.detail, fix in result.fix) == (FAILED, True, True), result


def test_the_fix_is_that_of_the_trainer_library() -> None:
    library = TrainerLibraries(("accelerate",))
    result = sampler_overlap.judge(
        case({rank: [ddp(), library, loader(samplers=("RandomSampler",)), *epoch(range(8))] for rank in range(2)})
    )
    assert "`accelerator.prepare`" in result.fix


def test_shares_pass_though_the_last_batch_is_padded() -> None:
    shares = {0: [0, 2, 4, 6], 1: [1, 3, 5, 0]}
    assert (
        sampler_overlap.judge(
            case({rank: [ddp(), loader(length=7), *epoch(share)] for rank, share in shares.items()})
        ).status
        == PASSED
    )


def test_indices_that_mean_other_samples_pass() -> None:
    rows = {0: range(100, 108), 1: range(200, 208)}
    assert (
        sampler_overlap.judge(
            case({rank: [ddp(), loader(), *epoch(range(8), rows=rows[rank])] for rank in rows})
        ).status
        == PASSED
    )


def test_a_sample_with_another_index_on_each_rank_fails_with_the_fix_for_that() -> None:
    rows = {0: [10, 11, 12, 13, 14, 15, 16, 17], 1: [13, 10, 11, 12, 20, 21, 22, 23]}
    notes = {rank: [ddp(), loader(sampling=DIVIDED), *epoch(range(8), rows=rows[rank])] for rank in rows}

    result = sampler_overlap.judge(case(notes))

    assert (result.status, at(result), result.ranks) == (FAILED, LINE, (0, 1))
    assert "the sample with index 0 on rank 0 has index 1 on rank 1, as have 3 others" in result.detail
    assert "random_split" in result.fix


@pytest.mark.parametrize(
    "rows",
    [
        {0: [10, 11, 12, 13, 14, 15, 16, 10], 1: [13, 10, 11, 12, 20, 21, 22, 23]},  # 10 occurs twice on rank 0
        {0: [10, 11, 12, 13, 14, 15, 16, 17], 1: [20, 21, 22, 23, 10, 11, 12, 13]},  # each is four indices further on
        {0: range(10, 42), 1: [12, 10, 11, *range(50, 79)]},  # too few for data in another order
    ],
)
def test_a_sample_that_occurs_twice_in_the_data_has_two_indices(rows: dict[int, Sequence[int]]) -> None:
    indices = {0: range(len(rows[0])), 1: range(100, 100 + len(rows[1]))}
    notes = {rank: [ddp(), loader(sampling=DIVIDED), *epoch(indices[rank], rows=rows[rank])] for rank in rows}

    assert sampler_overlap.judge(case(notes)).status == PASSED


def test_an_index_may_be_another_sample_on_ranks_that_train_another_model() -> None:
    rows = {0: [10, 11, 12, 13, 14, 15, 16, 17], 1: [13, 10, 11, 12, 20, 21, 22, 23]}
    notes = {rank: [ddp((rank,)), loader(sampling=DIVIDED), *epoch(range(8), rows=rows[rank])] for rank in rows}

    assert sampler_overlap.judge(case(notes)).status == NOT_APPLICABLE


def test_names_that_ranks_number_differently_fail_even_if_no_sample_is_shared() -> None:
    codes = {"alike": ((("classes", 1, 2),),) * 2, "apart": ((("classes", 1, 2),), (("classes", 1, 3),))}
    results = {
        key: sampler_overlap.judge(
            case({rank: [ddp(), loader(codes=mine[rank]), *epoch(range(8 * rank, 8 * rank + 8))] for rank in range(2)})
        )
        for key, mine in codes.items()
    }

    assert {key: result.status for key, result in results.items()} == {"alike": PASSED, "apart": FAILED}
    assert ("`classes`" in results["apart"].detail, results["apart"].ranks) == (True, (0, 1))


def test_a_part_of_the_data_that_is_divided_again_warns() -> None:
    rows = {0: range(100, 108), 1: range(200, 208)}
    notes = {rank: [ddp(), loader(sampling=DIVIDED), *epoch(range(8), rows=rows[rank])] for rank in rows}

    assert sampler_overlap.judge(case(notes)).status == WARNED


def test_samples_that_change_from_epoch_to_epoch_do_not_show_what_an_index_means() -> None:
    rows = {0: (range(100, 108), range(300, 308)), 1: (range(200, 208), range(400, 408))}
    notes = {
        rank: [
            ddp(),
            loader(sampling=DIVIDED),
            *(each for at in (0, 1) for each in epoch(range(8), number=at, rows=rows[rank][at])),
        ]
        for rank in rows
    }

    assert sampler_overlap.judge(case(notes)).status == PASSED


def test_ranks_without_ddp_may_rightly_see_the_same_as_in_tensor_parallelism() -> None:
    ends = ScriptEnd(steps=4, synchronizations=8)

    assert (
        sampler_overlap.judge(case({rank: [loader(), *epoch(range(8)), ends] for rank in range(2)})).status
        == NOT_APPLICABLE
    )


def test_equal_indices_fail_where_augmentation_makes_contents_differ() -> None:
    rows = {0: range(100, 108), 1: range(200, 208)}
    drawn = RandomDraws(0, 0, 0, 2, states={"torch": (1, 9)})
    notes = {rank: [ddp(), loader(), drawn, *epoch(range(8), rows=rows[rank])] for rank in rows}
    assert sampler_overlap.judge(case(notes)).status == FAILED


def test_pairs_of_all_ranks_are_named_by_their_ranks() -> None:
    result = sampler_overlap.judge(case({rank: [ddp(range(4)), loader(), *epoch(range(8))] for rank in range(4)}))
    assert result.detail.startswith("any two of ranks 0, 1, 2, 3 both saw all 8 samples")


def test_slices_of_the_same_batches_pass() -> None:
    fed = {0: [0, 2, 4, 6], 1: [1, 3, 5, 7]}
    notes = {
        rank: [
            ddp(),
            loader(),
            *(TrainingForward(0, (0, 1), 0, (row,), loader=0, epoch=0) for row in fed[rank]),
        ]
        + epoch(range(8))
        for rank in fed
    }
    assert sampler_overlap.judge(case(notes)).status == PASSED


def test_ranks_of_other_groups_may_see_the_same() -> None:
    notes = {rank: [ddp((rank,)), loader(), *epoch(range(8))] for rank in range(2)}
    assert sampler_overlap.judge(case(notes)).status == NOT_APPLICABLE


def test_draws_with_replacement_pass_and_equal_ones_fail() -> None:
    draws = {0: [1, 5, 5, 9, 12, 1, 3, 14, 3, 8], 1: [7, 5, 2, 9, 9, 15, 2, 1, 0, 15]}
    assert (
        sampler_overlap.judge(case({rank: [ddp(), loader(), *epoch(draws[rank])] for rank in draws})).status == PASSED
    )
    assert sampler_overlap.judge(case({rank: [ddp(), loader(), *epoch(draws[0])] for rank in draws})).status == FAILED


def given(rows_of_rank: dict[int, list[tuple[int, ...]]]) -> str:
    """Return what is said of batches that a script without a loader gives to its DDP model."""
    notes = {
        rank: [ddp(), *(TrainingForward(0, (0, 1), number, rows) for number, rows in enumerate(batches))]
        for rank, batches in rows_of_rank.items()
    }
    return sampler_overlap.judge(case(notes)).status


def test_batches_that_each_rank_draws_at_random_from_all_data_may_share_rows() -> None:
    """The ranks take three data sets of 64 rows by turns, so that the first repeated row comes late."""
    rows = {
        rank: [
            tuple(1000 * ((step + rank) % 3) + row for row in Random(100 * step + rank).sample(range(64), 16))
            for step in range(12)
        ]
        for rank in range(2)
    }

    assert given(rows) == PASSED


def test_epochs_of_all_data_in_an_order_of_each_rank_fail() -> None:
    orders = {rank: [Random(9 * epoch + rank).sample(range(64), 64) for epoch in range(3)] for rank in range(2)}
    rows = {
        rank: [tuple(order[start : start + 16]) for order in epochs for start in range(0, 64, 16)]
        for rank, epochs in orders.items()
    }

    assert given(rows) == FAILED


IN_ORDER = list(range(100, 140))
SHUFFLED = Random(3).sample(IN_ORDER, 40)


@pytest.mark.parametrize(
    ("rows", "wholes", "status"),
    [
        ((IN_ORDER, SHUFFLED), ((40, 7), (40, 7)), FAILED),
        ((IN_ORDER, SHUFFLED), ((40, 7), (40, 8)), PASSED),
        ((IN_ORDER, [*IN_ORDER[5:], *IN_ORDER[:5]]), (None, None), WARNED),  # an endless stream, read alike
        ((IN_ORDER, SHUFFLED), (None, None), PASSED),  # draws from one pool
        (([1, 2] * 20, [1, 2] * 20), ((40, 7), (40, 7)), PASSED),  # samples that are equal by nature
    ],
)
def test_workers_that_read_the_same_stream_are_named(
    rows: tuple[list[int], list[int]], wholes: tuple[tuple[int, int] | None, tuple[int, int] | None], status: str
) -> None:
    shares = {rank: range(8 * rank, 8 * rank + 8) for rank in range(2)}
    notes = {
        rank: [ddp(), loader(), *epoch(share)]
        + [StreamRead(0, worker, 2, tuple(rows[worker]), wholes[worker], LINE) for worker in range(2)]
        for rank, share in shares.items()
    }

    result = sampler_overlap.judge(case(notes))

    assert result.status == status
    assert (at(result) == LINE) == (status != PASSED)


@pytest.mark.parametrize(
    ("names", "codes", "status"),
    [((7, 7), (1, 2), WARNED), ((7, 7), (1, 1), NOT_APPLICABLE), ((7, 8), (1, 2), NOT_APPLICABLE)],
)
def test_names_that_ranks_number_differently_warn(names: Sequence[int], codes: Sequence[int], status: str) -> None:
    numbered = {rank: NumberedNames("vocabulary.index", names[rank], codes[rank], LINE) for rank in range(2)}
    result = sampler_overlap.judge(case({rank: [ddp(), numbered[rank]] for rank in range(2)}))

    assert (result.status, result.detail.startswith("`vocabulary.index`")) == (status, status == WARNED), result


def _passes(seeds: Sequence[int], world: int = 2, batch: int = 8, each: slice | None = None) -> dict[int, Any]:
    """Return what ranks are given in two epochs, of each of which they take every `world`-th row in the order of a seed."""
    found: dict[int, Any] = {}
    for rank, seed in enumerate(seeds):
        random, rows = Random(seed), []
        for _ in range(2):
            order = random.sample(range(256), 256)
            rows += order[each or slice(rank, None, world)]
        given = [GivenRows(tuple(rows[start : start + batch]), at=LINE) for start in range(0, len(rows), batch)]
        found[rank] = [*given, ScriptEnd(steps=len(given), synchronizations=len(given))]
    return found


def test_parts_of_an_order_that_each_rank_draws_by_itself_are_warned_of() -> None:
    result = sampler_overlap.judge(case(_passes([1, 2])))
    assert (result.status, at(result), result.ranks) == (WARNED, LINE, (0, 1))


@pytest.mark.parametrize(
    "observed",
    [
        pytest.param(_passes([1, 1]), id="of one order"),
        pytest.param(_passes([1] * 8, world=8, batch=1), id="of one order, and the next pass repeats nothing at first"),
        pytest.param(_passes([1, 2], each=slice(None)), id="each rank goes through all rows"),
        pytest.param(_passes([1, 1], each=slice(None)), id="ranks share each row, as in tensor parallelism"),
        pytest.param({rank: each[:8] for rank, each in _passes([1, 2]).items()}, id="a pass has not ended"),
    ],
)
def test_parts_of_a_common_order_are_nothing_to_warn_of(observed: dict[int, Any]) -> None:
    assert sampler_overlap.judge(case(observed)).status == NOT_APPLICABLE


def test_rows_that_are_drawn_for_each_batch_may_meet() -> None:
    given: dict[int, Any] = {}
    for rank in range(2):
        random = Random(rank)
        given[rank] = [GivenRows(tuple(random.sample(range(256), 8)), at=LINE) for _ in range(40)]
        given[rank] += [ScriptEnd(steps=40, synchronizations=40)]
    assert sampler_overlap.judge(case(given)).status == NOT_APPLICABLE
