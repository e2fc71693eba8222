"""What a loss's graph shows about how it is made of means over samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from compose_sim.node.rank.observers.sketches import LossScale, scale_of

VALUES = torch.ones(4, requires_grad=True)


@pytest.mark.parametrize(
    ("loss", "times"),
    [
        (lambda values: values.mean(), 1.0),
        (lambda values: -values.mean(), 1.0),
        (lambda values: values.mean() / 4, 0.25),
        (lambda values: -values.mean() + 0.5 * (values**2).mean() - 0.01 * values.mean(), 1.0),
        (lambda values: (values.mean() + 0.5 * values.mean()) * 4, 4.0),
        (lambda values: values.sum() / 8, LossScale(False, 0.125)),
        (
            lambda values: torch.nn.functional.mse_loss(values, torch.zeros(4), reduction="sum") * 2,
            LossScale(False, 2.0),
        ),
        (lambda values: values.mean() + 0.1 * (values**2).sum(), None),
        (lambda values: sum((values.mean() for _ in range(20)), torch.zeros(())), None),
    ],
)
def test_a_loss_is_a_mean_or_a_sum_times_a_number(loss: Callable[[Any], Any], times: float | LossScale | None) -> None:
    expected = LossScale(True, times) if isinstance(times, float) else times

    assert scale_of(loss(VALUES).grad_fn) == (expected and pytest.approx(expected))
