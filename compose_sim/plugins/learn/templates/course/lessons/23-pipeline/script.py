"""Order the work of a stage of a pipeline. harness.py calls this on each rank, and measures time, memory and gradients."""

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
        stage.backward(number)
    print(f"stage {dist.get_rank()} of {dist.get_world_size()} has ended", flush=True)
