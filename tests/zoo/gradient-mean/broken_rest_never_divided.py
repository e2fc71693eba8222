"""Full buckets of gradients are averaged, but what remains in the last one is only added up, and then all is clipped."""
# expects: gradient-mean
# also: matches-single, loss-scale

import torch
import torch.distributed as dist
from torch import nn

LARGEST = 630  # numbers that are sent at once


def reduce(parts: list[torch.Tensor], divide: bool = False) -> None:
    flat = torch.cat([part.flatten() for part in parts])
    dist.all_reduce(flat)
    if divide:
        flat /= dist.get_world_size()
    start = 0
    for part in parts:
        part.copy_(flat[start : start + part.numel()].view_as(part))
        start += part.numel()


def reduce_gradients(model: nn.Module) -> None:
    parts: list[torch.Tensor] = []
    for parameter in model.parameters():
        parts.append(parameter.grad)
        if sum(part.numel() for part in parts) >= LARGEST:
            reduce(parts, divide=True)
            parts = []
    if parts:
        reduce(parts)


dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(3)
inputs = torch.randn(640, 12)
targets = (inputs[:, :3].sum(1) > 0).long()
model = nn.Sequential(nn.Linear(12, 48), nn.Tanh(), nn.Linear(48, 12), nn.Tanh(), nn.Linear(12, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(10):
    mine = slice((step * world_size + rank) * 8, (step * world_size + rank + 1) * 8)
    loss = nn.functional.cross_entropy(model(inputs[mine]), targets[mine])
    optimizer.zero_grad()
    loss.backward()
    reduce_gradients(model)
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
dist.destroy_process_group()
