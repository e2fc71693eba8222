"""Slow: little is kept, but the pipeline runs empty between groups."""

from typing import Protocol

import torch.distributed as dist


class Stage(Protocol):
    """The layers of this rank; those before are on rank - 1, those after on rank + 1."""

    def forward(self, number: int) -> None:
        """Wait for the input of a micro-batch, compute, keep what backward needs, and send the output on."""

    def backward(self, number: int) -> None:
        """Wait for the gradient of a micro-batch, compute, free what was kept, and send the gradient back."""


def train_step(stage: Stage, microbatches: int) -> None:
    """Call forward and backward once for each of the micro-batches 0, 1, 2, …; stages are ranks, in their order."""
    size = dist.get_world_size()
    for first in range(0, microbatches, size):
        group = range(first, min(first + size, microbatches))
        for number in group:
            stage.forward(number)
        for number in group:
            stage.backward(number)
