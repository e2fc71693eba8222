"""All ranks pass over a batch that is damaged on one of them: they exchange what they saw before they decide."""

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
        damaged = (~inputs.isfinite()).any().float()
        dist.all_reduce(damaged, op=dist.ReduceOp.MAX)
        if damaged:
            continue
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), inputs.sum(1, keepdim=True)).backward()
        optimizer.step()


dist.init_process_group("gloo")
torch.manual_seed(0)
train(DistributedDataParallel(nn.Linear(5, 1)), dist.get_rank(), torch.Generator().manual_seed(dist.get_rank()))
dist.destroy_process_group()
