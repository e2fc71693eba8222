"""A rank that meets an infinite gradient skips the step by itself; the others take it."""
# expects: params-in-sync

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
own = torch.Generator().manual_seed(rank)
for step in range(10):
    x = torch.randn(8, 8, generator=own)
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), x.sum(1, keepdim=True)).backward()
    if rank == 1 and step in (3, 7):
        model.weight.grad[0, 0] = float("inf")  # as half precision gives now and then
    skips = not all(torch.isfinite(parameter.grad).all() for parameter in model.parameters())
    for parameter in model.parameters():
        parameter.grad.nan_to_num_(0.0, 0.0, 0.0)
        dist.all_reduce(parameter.grad)
        parameter.grad /= world_size
    if not skips:
        optimizer.step()
dist.destroy_process_group()
