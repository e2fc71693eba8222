"""A gradient says how the loss changes: if moves of a parameter show otherwise, it is wrong, whatever computed it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from compose_sim.core.checks import PASSED, Case, CheckResult
from compose_sim.core.checks.rules.replays import may_be_probed
from compose_sim.core.checks.rules.slopes import judge_slopes, wrong_pairs
from compose_sim.core.events.observations import Observed
from compose_sim.node.records.data import Join
from compose_sim.node.records.gradients import ContrastedSamples, LossSlope, SketchedStep
from compose_sim.node.records.record import Record
from compose_sim.node.records.script import ScriptEnd
from tests.core.checks.rules.cluster import observe

LOSSES = [1.0 - 0.01 * step for step in range(12)]
SLOPES = [0.0, 0.0, 3e-4, -2e-4, 5e-4, 1e-4, -4e-4, 2e-4, 3e-4, -1e-4, -3e-4, 2e-4]  # how a move changes the loss
RANDOM = [0.0, 0.0, -1e-4, 3e-4, 1e-4, 5e-4, 2e-4, -3e-4, -2e-4, 4e-4, 1e-4, -5e-4]

Products = Callable[[int, int], float | None]  # by rank and step


def run(products: Products | None = None, *, held: Callable[[int], int] = lambda _: 7, cut: bool = False) -> Observed:
    """Return the first run, or the second one, whose gradients predict these changes."""

    def record(rank: int, step: int) -> LossSlope:
        if products is None or step < 2:
            return LossSlope(step, LOSSES[step], "", 0, None)
        name = ("first.weight", "second.weight")[step % 2]
        return LossSlope(step, LOSSES[step] + SLOPES[step], name, held(rank), products(rank, step), is_cut=cut)

    return Observed(ranks={rank: observe(rank, [record(rank, step) for step in range(12)]) for rank in range(2)})


def judged(second: Observed | None, first: Observed | None = None) -> CheckResult | None:
    return judge_slopes(Case(observed=first or run(), verdict="passed", probed=second))


def test_right_gradients_of_copies_and_of_parts_are_no_finding() -> None:
    assert judged(run(lambda rank, step: SLOPES[step])) is None
    assert judged(run(lambda rank, step: SLOPES[step] / 2, held=lambda rank: rank)) is None  # parts
    assert judged(run(lambda rank, step: 4 * SLOPES[step])) is None  # a factor is no mistake by itself
    assert judged(run(lambda rank, step: SLOPES[step] * (2 if rank else 0))) is None  # not reduced yet


def test_the_parameter_whose_gradient_is_wrong_is_named() -> None:
    result = judged(run(lambda rank, step: RANDOM[step] if step % 2 else SLOPES[step]))

    assert result is not None
    assert result.status == "warned"
    assert "second.weight" in result.detail
    assert "first.weight" not in result.detail


@pytest.mark.parametrize("kind", ["cut", "other losses", "no run"])
def test_nothing_is_said_without_a_second_run_that_is_the_same(kind: str) -> None:
    wrong: Products = lambda rank, step: RANDOM[step]  # noqa: E731
    first = run()
    if kind == "other losses":
        first = Observed(
            ranks={rank: observe(rank, [LossSlope(step, 2.0, "", 0, None) for step in range(12)]) for rank in range(2)}
        )

    assert judged(None if kind == "no run" else run(wrong, cut=kind == "cut"), first) is None
    assert judged(run(wrong)) is not None


def test_ranks_that_make_other_steps_are_not_compared() -> None:
    def observed(counts: Sequence[int], *more: Join) -> Observed:
        notes = {
            rank: [LossSlope(step, 1.0, "", 0, None) for step in range(count)] for rank, count in enumerate(counts)
        }
        return Observed(ranks={rank: observe(rank, [*each, *more]) for rank, each in notes.items()})

    def asked(seen: Observed, verdict: str = PASSED) -> bool:
        return may_be_probed(Case(observed=seen, verdict=verdict))

    assert asked(observed([5, 5]))
    assert not asked(observed([4, 4]))  # too few to say anything
    assert not asked(observed([5, 4]))
    assert not asked(observed([5]))
    assert not asked(observed([5, 5]), "failed")
    assert not asked(observed([5, 5], Join(enabled=True)))
    ends = {rank: observe(rank, [LossSlope(0, 1.0, "", 0, None), ScriptEnd(steps=9 - rank)]) for rank in range(2)}
    assert not asked(Observed(ranks=ends))


@pytest.mark.parametrize(
    ("times", "scaled", "optimizer", "began", "is_found"),
    [
        (2.0, 1.0, "SGD", (0, 1), True),
        (2.0, 0.5, "SGD", (0, 1), False),  # the script divides before the step
        (2.0, None, "SGD", (0, 1), False),  # it changes the gradient in another way
        (1.5, 1.0, "SGD", (0, 1), False),
        (2.0, 1.0, "AdamW", (0, 1), False),  # a factor does not change its steps
        (2.0, 1.0, "SGD", (5, 5), False),  # copies that came apart
    ],
)
def test_a_gradient_is_as_large_as_that_of_other_parameters(
    times: float, scaled: float | None, optimizer: str, began: tuple[int, int], is_found: bool
) -> None:
    def record(rank: int, step: int) -> list[Record]:
        if step < 2:
            return [LossSlope(step, LOSSES[step], "", 0, None)]
        expert = step % 2
        product = SLOPES[step] * (times / 2 if expert else 1.0)  # of two parts, or of copies
        found = LossSlope(
            step,
            LOSSES[step] + SLOPES[step],
            "expert.weight" if expert else "shared.weight",
            rank if expert else 7,
            product,
            scaled=scaled if expert else 1.0,
            most_scaled=1.0,
            began=began[rank] if expert else 7,
        )
        return [found]

    taken = SketchedStep(0, 1, (), (), (), (), type=optimizer)
    first = Observed(
        ranks={
            rank: observe(rank, [taken, *(LossSlope(each, LOSSES[each], "", 0, None) for each in range(12))])
            for rank in range(2)
        }
    )
    second = Observed(
        ranks={rank: observe(rank, [each for step in range(12) for each in record(rank, step)]) for rank in range(2)}
    )

    result = judged(second, first)

    assert (result is not None) == is_found
    if result is not None:
        assert result.status == "warned"
        assert "expert.weight is 2 times" in result.detail


@pytest.mark.parametrize(("choices", "is_found"), [(0, True), (5, False)])
def test_moves_that_change_what_a_router_chooses_show_no_wrong_gradient(choices: int, is_found: bool) -> None:
    def record(rank: int, step: int) -> LossSlope:
        if step < 2:
            return LossSlope(step, LOSSES[step], "", 0, None)
        return LossSlope(step, LOSSES[step] + SLOPES[step], "router.weight", 7, RANDOM[step], choices=choices)

    second = Observed(ranks={rank: observe(rank, [record(rank, step) for step in range(12)]) for rank in range(2)})

    assert (judged(second) is not None) == is_found


@pytest.mark.parametrize(
    ("seen", "is_found"),
    [
        ([(True, 0.5, 0.1)], True),
        ([(False, 0.5, 0.1), (False, 5.0, 0.1)], True),  # a model learns to tell pairs from others
        ([(False, 0.5, 0.1), (False, 3.0, 0.1)], False),
        ([(False, 5.0, 5.0)], False),  # scores of anything are high
        ([(False, 0.1, 5.0)], False),  # a rank that puts its own samples first
    ],
)
def test_targets_of_rank_zero_are_found(seen: list[tuple[bool, float, float]], is_found: bool) -> None:
    notes = [ContrastedSamples(8, *each, at=("/work/train.py", 4)) for each in seen]
    observed = Observed(ranks={rank: observe(rank, notes if rank else []) for rank in range(3)})

    result = wrong_pairs(Case(observed=observed, verdict="passed"))

    assert (result is not None) == is_found
    assert result is None or result.ranks == (1, 2)


@pytest.mark.parametrize(("chosen", "ranks", "is_found"), [(0.1, 3, True), (0.1, 2, False), (5.0, 3, False)])
def test_targets_that_pair_samples_of_other_ranks_are_found_by_the_scores(
    chosen: float, ranks: int, is_found: bool
) -> None:
    note = ContrastedSamples(8, False, 9.0, chosen, are_halves=True, at=("/work/train.py", 4))
    observed = Observed(ranks={rank: observe(rank, [note] if rank < ranks else []) for rank in range(3)})

    assert (wrong_pairs(Case(observed=observed, verdict="passed")) is not None) == is_found
