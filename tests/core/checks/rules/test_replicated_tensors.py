"""Whether tensors that ranks declare replicated are equal, and copies beside parts that are held by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from compose_sim.core.checks.rules.copies import replicated_tensors
from compose_sim.node.records.gradients import SketchedStep, SketchedTensor, SketchedTensors
from compose_sim.node.records.precautions import ReplicatedTensor
from compose_sim.node.records.record import Record
from tests.core.checks.rules.cluster import at, case
from tests.core.checks.rules.replicas import AT, all_reduce


def inputs(*hashes: str, is_input: bool = True, sums: float = 0.0) -> list[ReplicatedTensor]:
    sketch = (sums, 1.0) if sums else None
    return [ReplicatedTensor((0, 1), number, (8, 4), each, is_input, sketch, AT) for number, each in enumerate(hashes)]


@pytest.mark.parametrize(
    ("other", "status"),
    [
        (inputs("a", "b", "c"), "passed"),
        (inputs("d", "e", "f"), "failed"),
        (inputs("d", "b", "c"), "warned"),
        (inputs("a", "b", "f"), "warned"),
        (inputs("a", "b", "f", sums=0.5), "warned"),
        (inputs("a", "b", "f", sums=1.0001), "passed"),  # rounding
        (inputs("d", "e", "f", is_input=False), "failed"),  # as the first rank says
    ],
)
def test_the_ranks_of_a_mesh_get_the_same_inputs(other: Sequence[ReplicatedTensor], status: str) -> None:
    assert replicated_tensors.judge(case({0: inputs("a", "b", "c", sums=1.0), 1: other})).status == status


def test_parameters_alone_are_no_inputs() -> None:
    assert (
        replicated_tensors.judge(case({rank: inputs(str(rank), is_input=False) for rank in range(2)})).status
        == "not-applicable"
    )


ROWS = (SketchedTensor(None, "up.weight", (8, 2)), SketchedTensor(None, "embed.weight", (6, 8)))


def parallel(rank: int, *, apart: float = 0.2, parts: float = 1.0, reduced: int = 2) -> list[Record]:
    """Three steps of a rank that holds a part and a copy; after each, the copies of two ranks are further `apart`."""
    found: list[Record] = [SketchedTensors(0, ROWS)]
    for nth in range(1, 4):
        part = (1.0 + parts * rank, 2.0)
        before, after = ((part, (0.5 + (1 + apart * rank) * moved, 0.7)) for moved in (nth - 1, nth))
        found += [all_reduce(4, 8)] * reduced
        found.append(SketchedStep(0, nth, (None, None), (None, None), before, after, in_forward=1, in_backward=1))
    return found


@pytest.mark.parametrize(
    ("more", "status"),
    [
        ({}, "failed"),
        ({"apart": 0.001}, "not-applicable"),  # rounding
        ({"parts": 0.0}, "not-applicable"),  # all began equal: these are replicas, or parts that look alike
        ({"reduced": 1}, "not-applicable"),  # activations are added up in both passes
    ],
)
def test_a_copy_beside_parts_must_not_drift(more: dict[str, Any], status: str) -> None:
    result = replicated_tensors.judge(case({rank: parallel(rank, **more) for rank in range(2)}))
    assert result.status == status
    assert (status != "failed") or ("embed.weight (6×8)" in result.detail and at(result) == AT)


def test_a_matrix_that_stays_equal_shows_that_samples_are_the_same() -> None:
    def with_another(rank: int) -> list[Record]:
        table, *others = parallel(rank)
        assert isinstance(table, SketchedTensors)
        steps = [
            replace(each, own=(None,) * 3, before=(*each.before, (3.0,)), after=(*each.after, (3.0,)))
            if isinstance(each, SketchedStep)
            else each
            for each in others
        ]
        return [SketchedTensors(0, (*ROWS, SketchedTensor(None, "out.weight", (8, 3)))), *steps]

    assert replicated_tensors.judge(case({rank: with_another(rank) for rank in range(2)})).status == "not-applicable"


@pytest.mark.parametrize(
    ("own", "first", "in_backward", "status"),
    [
        (lambda rank: (0.3, 0.1), True, 0, "failed"),
        (lambda rank: (0.3, 0.1 + rank), True, 0, "not-applicable"),  # they add it up, and may have other samples
        (lambda rank: (0.0, 0.0), True, 0, "not-applicable"),  # it is not trained
        (lambda rank: (0.3, 0.1), False, 0, "not-applicable"),  # a part that begins with a constant
        (lambda rank: (0.3, 0.1), True, 1, "not-applicable"),  # as above, before a layer that is divided
    ],
)
def test_a_copy_must_not_drift_beside_one_that_gets_the_same_gradient(
    own: Callable[[int], tuple[float, float]], first: bool, in_backward: int, status: str
) -> None:
    """Activations are added up in forward passes only, as where a layer gets its input without an all_reduce in backward."""

    def with_steady(rank: int) -> list[Record]:
        order = slice(None, None, -1 if first else 1)  # of the part and the copy that drifts
        table, *others = parallel(rank, reduced=1 + in_backward)
        assert isinstance(table, SketchedTensors)
        steps = [
            replace(
                each,
                own=(None, None, own(rank)),
                before=(*each.before[order], (3.0, each.nth)),
                after=(*each.after[order], (3.0, each.nth + 1)),
                in_backward=in_backward,
            )
            if isinstance(each, SketchedStep)
            else each
            for each in others
        ]
        return [SketchedTensors(0, (*ROWS[order], SketchedTensor(None, "out.weight", (8, 3)))), *steps]

    result = replicated_tensors.judge(case({rank: with_steady(rank) for rank in range(2)}))
    assert result.status == status
    assert (status != "failed") or all(name in result.detail for name in ("up.weight", "embed.weight", "out.weight"))
