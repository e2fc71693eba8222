"""One rank passes over a damaged batch of a loop without a loader: from there on, ranks reduce gradients of other iterations."""

# expects: uneven-inputs
# also: hang, collective-mismatch, teardown

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def train(model: nn.Module, rank: int, generator: torch.Generator) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(12):
        inputs = torch.randn(6, 5, generator=generator)
        if rank == 3 and step == 4:
            inputs[0] = torch.inf
        if not inputs.isfinite().all():
            continue
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), inputs.sum(1, keepdim=True)).backward()
        optimizer.step()


dist.init_process_group("gloo")
torch.manual_seed(0)
train(DistributedDataParallel(nn.Linear(5, 1)), dist.get_rank(), torch.Generator().manual_seed(dist.get_rank()))
dist.destroy_process_group()
