"""Rank 0 broadcasts a new threshold that no other rank receives. A sender in gloo does not wait, so the run passes."""

# expects: collective-mismatch
# also: hang

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def batches(rank: int, steps: int):
    generator = torch.Generator().manual_seed(100 + rank)
    for _ in range(steps):
        features = torch.randn(16, 6, generator=generator)
        yield features, features.abs().sum(1, keepdim=True)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(2)
    model = DDP(torch.nn.Sequential(torch.nn.Linear(6, 24), torch.nn.GELU(), torch.nn.Linear(24, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for features, target in batches(rank, 20):
        loss = torch.nn.functional.smooth_l1_loss(model(features), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if rank == 0:
        threshold = torch.tensor([0.5])
        dist.broadcast(threshold, src=0)
    dist.destroy_process_group()


main()
