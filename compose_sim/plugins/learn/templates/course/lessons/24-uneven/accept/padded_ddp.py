"""Right: torch's wrapper, samples of weight 0, and a loss that undoes the mean over the ranks."""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer


def train(model: nn.Module, optimizer: Optimizer, batches: list[tuple[Tensor, Tensor]]) -> None:
    """
    Step as often as the rank with most batches has batches, along the gradient of the mean loss.

    The mean is that over the samples of all ranks in this step. Inputs have one row per sample, targets one number each.
    """
    wrapped, width = DistributedDataParallel(model), next(model.parameters()).shape[1]
    sizes = [torch.zeros(100) for _ in range(dist.get_world_size())]
    own = torch.zeros(100)
    own[: len(batches)] = torch.tensor([float(len(inputs)) for inputs, _ in batches])
    dist.all_gather(sizes, own)
    for step, samples in enumerate(torch.stack(sizes).sum(0)):
        if not samples:
            break
        optimizer.zero_grad()
        inputs, targets = batches[step] if step < len(batches) else (torch.zeros(1, width), torch.zeros(1, 1))
        loss = nn.functional.mse_loss(wrapped(inputs), targets, reduction="sum") * (step < len(batches))
        (loss * dist.get_world_size() / samples).backward()
        optimizer.step()
