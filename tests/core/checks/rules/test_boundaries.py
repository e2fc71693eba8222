"""Gradients between stages of a pipeline are matched with activations by content."""

from __future__ import annotations

from collections.abc import Sequence

from compose_sim.core.checks.rules.gradients import crossed_micro_batches
from compose_sim.node.records.gradients import BoundaryGradient
from tests.core.checks.rules.cluster import at, case

AT = ("/work/train.py", 12)


def stages(
    order: Sequence[int], computed: Sequence[int] = range(4)
) -> tuple[list[BoundaryGradient], list[BoundaryGradient]]:
    """Return what the last stage computed for activations 1, 2, …, and what the first uses for the same."""
    first = [BoundaryGradient(index, 100 + gradient, is_input=False, at=AT) for index, gradient in enumerate(order)]
    return first, [BoundaryGradient(index, 100 + index, is_input=True) for index in computed]


def test_gradients_of_other_micro_batches_are_found() -> None:
    first, last = stages([3, 2, 1, 0])
    result = crossed_micro_batches(case({0: first, 1: last}))

    assert result is not None
    assert at(result) == AT
    assert result.ranks == (0, 1)


def test_the_same_order_equal_micro_batches_and_unknown_gradients_are_no_mistake() -> None:
    first, last = stages([0, 1, 2, 3])
    twice, again = stages([3, 2, 1, 0])
    unknown, _ = stages([7, 8, 9, 10])

    assert crossed_micro_batches(case({0: first, 1: last})) is None
    assert crossed_micro_batches(case({0: twice, 1: again, 2: again})) is None  # two replicas computed the same
    assert crossed_micro_batches(case({0: unknown, 1: last})) is None  # the script has changed them
