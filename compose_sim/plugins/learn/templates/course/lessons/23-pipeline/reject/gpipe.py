"""Wasteful: all forward passes first, as in GPipe. The time is right, but everything is kept."""

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
    for number in range(microbatches):
        stage.forward(number)
    for number in reversed(range(microbatches)):
        stage.backward(number)
    print(f"stage {dist.get_rank()} has ended", flush=True)
