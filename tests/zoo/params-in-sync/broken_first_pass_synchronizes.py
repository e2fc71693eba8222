"""DDP reduces in the first of three backward passes of a step, and a ZeRO optimizer hides that the others stay with each rank."""

# expects: params-in-sync

from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

PASSES, STEPS = 3, 8


def is_reduced(number):
    return number % PASSES == 0


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(8)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(5, 24), nn.SiLU(), nn.Linear(24, 1)))
    optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.AdamW, lr=0.01)
    generator = torch.Generator().manual_seed(40 + dist.get_rank())
    for number in range(PASSES * STEPS):
        inputs = torch.randn(10, 5, generator=generator)
        with nullcontext() if is_reduced(number) else model.no_sync():
            loss = (model(inputs) - inputs.prod(1, keepdim=True)).square().mean() / PASSES
            loss.backward()
        if number % PASSES == PASSES - 1:
            optimizer.step()
            optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
