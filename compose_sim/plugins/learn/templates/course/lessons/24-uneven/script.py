"""Train on ranks that have different numbers of batches. harness.py calls this, and compares with one rank that has everything."""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer


def train(model: nn.Module, optimizer: Optimizer, batches: list[tuple[Tensor, Tensor]]) -> None:
    """
    Step as often as the rank with most batches has batches, along the gradient of the mean loss.

    The mean is that over the samples of all ranks in this step. Inputs have one row per sample, targets one number each.
    """
    steps = torch.tensor(len(batches))
    dist.all_reduce(steps, op=dist.ReduceOp.MIN)
    for inputs, targets in batches[: int(steps)]:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
        optimizer.step()
