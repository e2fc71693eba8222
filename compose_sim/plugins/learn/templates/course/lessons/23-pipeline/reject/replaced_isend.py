"""Wrong: all micro-batches go forward first, and messages are changed to say that no time has passed."""

import torch.distributed as dist
from torch import Tensor

send = dist.isend


def at_once(tensor: Tensor, **options: int) -> dist.Work | None:
    """Send a message whose first number, the time, is zero."""
    tensor[0] = 0
    return send(tensor, **options)


dist.isend = at_once


def train_step(stage, microbatches: int) -> None:
    """Call stage.forward(n) and stage.backward(n) once for each micro-batch n."""
    for number in range(microbatches):
        stage.forward(number)
    for number in range(microbatches):
        stage.backward(number)
