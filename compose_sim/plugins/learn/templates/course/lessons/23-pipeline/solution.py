"""Order the work of a stage of a pipeline: one forward, one backward (1F1B)."""

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
    warm_up = min(dist.get_world_size() - dist.get_rank() - 1, microbatches)  # those under way in later stages
    for number in range(warm_up):
        stage.forward(number)
    for number in range(warm_up, microbatches):
        stage.forward(number)
        stage.backward(number - warm_up)
    for number in range(microbatches - warm_up, microbatches):
        stage.backward(number)
