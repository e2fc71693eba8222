"""Train on ranks that have different numbers of batches: sums of gradients, divided by the samples of all ranks."""

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
    dist.all_reduce(steps, op=dist.ReduceOp.MAX)
    for step in range(int(steps)):
        optimizer.zero_grad()
        samples = torch.zeros(())
        for inputs, targets in batches[step : step + 1]:  # none, if this rank has ended
            nn.functional.mse_loss(model(inputs), targets, reduction="sum").backward()
            samples += len(inputs)
        dist.all_reduce(samples)
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            dist.all_reduce(parameter.grad)
            parameter.grad /= samples
        optimizer.step()
