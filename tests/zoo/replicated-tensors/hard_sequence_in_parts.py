"""Ranks of a tensor-parallel group hold different parts of each sequence, and say so: the input is a shard."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 8))
plan = {"0": ColwiseParallel(input_layouts=Shard(1)), "2": RowwiseParallel(output_layouts=Shard(1))}
parallelize_module(model, init_device_mesh("cpu", (ranks,)), plan)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
for _ in range(6):
    sequences = torch.randn(4, 8 * ranks, 8)
    part = sequences[:, 8 * rank : 8 * rank + 8]
    optimizer.zero_grad()
    (model(part) - part.roll(1, -1)).square().mean().backward()
    optimizer.step()
dist.destroy_process_group()
