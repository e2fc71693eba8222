"""When a schedule of the learning rate ends is read from torch's schedules, and found by asking functions of the script."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler

from compose_sim.node.rank.observers.schedules import end_of


def cosine(step: int) -> float:
    return 0.5 + 0.5 * math.cos(math.pi * min(step, 77) / 77)


def known_steps(step: int) -> float:
    return [0.5, 1.0, 0.5][step]


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=30), 30),
        (lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, T_max=12), 12),
        (lambda optimizer: lr_scheduler.LambdaLR(optimizer, cosine), 77),
        (lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step)), 0),
        (lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda _: 1.0), 0),
        (lambda optimizer: lr_scheduler.LambdaLR(optimizer, known_steps), 0),
        (lambda optimizer: lr_scheduler.StepLR(optimizer, 5), 0),
    ],
)
def test_the_end_of_a_schedule_is_known_or_nothing_is_said(make: Callable[[Any], Any], expected: int) -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)

    assert end_of(make(optimizer)) == expected
