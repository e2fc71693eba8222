"""Detached features of all ranks, rightly: keys of a slow encoder and a queue of them, a metric, and own features put back."""

import copy

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def everyone(features: torch.Tensor) -> list[torch.Tensor]:
    parts = [torch.empty_like(features) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, features.detach())
    return parts


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(3)
encoder = nn.Linear(12, 8)
slow = copy.deepcopy(encoder).requires_grad_(False)
model = DistributedDataParallel(encoder)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
generator = torch.Generator().manual_seed(rank)
queue = F.normalize(torch.randn(48, 8), dim=1)
labels = torch.arange(6) + 6 * rank
for _ in range(8):
    inputs = torch.randn(6, 12, generator=generator)
    queries = F.normalize(model(inputs), dim=1)
    with torch.no_grad():
        keys = F.normalize(slow(inputs + 0.1 * torch.randn(6, 12, generator=generator)), dim=1)
        all_keys = torch.cat(everyone(keys))
    parts = everyone(queries)
    spread = torch.cat(parts).std()
    parts[rank] = queries
    loss = F.cross_entropy(queries @ torch.cat([all_keys, queue]).T / 0.1, labels)
    loss = (
        loss
        + F.cross_entropy(queries @ all_keys.T / 0.1, labels)
        + 0.1 * (queries @ torch.cat(parts).T).square().mean()
    )
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    queue = torch.cat([all_keys, queue])[:48]
    with torch.no_grad():
        for kept, new in zip(slow.parameters(), encoder.parameters()):
            kept.lerp_(new, 0.1)
dist.destroy_process_group()
