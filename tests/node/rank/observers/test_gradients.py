"""What a loss's graph shows about how it is made of means over samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from compose_sim.node.rank.observers.sketches import LossScale, scale_of

VALUES = torch.ones(4, requires_grad=True)


TARGETS = torch.tensor([0, 1, -100, 1])


def entropy(values: Any, reduction: str = "mean") -> Any:
    """A loss of four targets, one of which is left out."""
    logits = torch.stack([values, -values], dim=1)
    return torch.nn.functional.cross_entropy(logits, TARGETS, reduction=reduction)


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (lambda values: values.mean(), LossScale(1.0, None, None)),
        (lambda values: -values.mean(), LossScale(1.0, None, None)),
        (lambda values: values.mean() / 4, LossScale(0.25, None, None)),
        (
            lambda values: -values.mean() + 0.5 * (values**2).mean() - 0.01 * values.mean(),
            LossScale(1.0, None, None),
        ),
        (lambda values: (values.mean() + 0.5 * values.mean()) * 4, LossScale(4.0, None, None)),
        (lambda values: values.sum() / 8, LossScale(None, 0.125, 0.125)),
        (lambda values: values.sum() / torch.tensor(8), LossScale(None, 0.125, 0.125)),
        (
            lambda values: torch.nn.functional.mse_loss(values, torch.zeros(4), reduction="sum") * 2,
            LossScale(None, 2.0, 2.0),
        ),
        (lambda values: entropy(values) / 2, LossScale(0.5, None, 1 / 6)),
        (lambda values: entropy(values, "sum") / 3, LossScale(None, 1 / 3, 1 / 3)),
        (lambda values: values.mean() + 0.1 * (values**2).sum(), LossScale(None, None, 0.1)),
        (lambda values: values.sum() / 4 + values.sum() / 5, LossScale(None, 0.25, None)),
        (lambda values: sum((values.mean() for _ in range(20)), torch.zeros(())), LossScale(None, None, None)),
        (lambda values: values[0] * values[1], LossScale(None, None, None)),
    ],
)
def test_a_loss_is_a_mean_or_a_sum_times_a_number(loss: Callable[[Any], Any], expected: LossScale) -> None:
    assert scale_of(loss(VALUES).grad_fn) == pytest.approx(expected)
