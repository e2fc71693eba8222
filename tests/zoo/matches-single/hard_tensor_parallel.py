"""Tensor parallelism over all ranks, beside layers that every rank has."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(8, 32), nn.Linear(32, 8), nn.LayerNorm(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x + self.down(torch.relu(self.up(x))))


dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (1, dist.get_world_size()), mesh_dim_names=("dp", "tp"))
torch.manual_seed(0)
model = nn.Sequential(Block(), Block(), nn.Linear(8, 2))
for block in model[:2]:
    parallelize_module(block, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
inputs = torch.randn(128, 8)
data = TensorDataset(inputs, (inputs[:, 0] > 0).long())
sampler = DistributedSampler(data, num_replicas=mesh["dp"].size(), rank=mesh["dp"].get_local_rank(), seed=1)
loader = DataLoader(data, batch_size=8, sampler=sampler)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, foreach=False)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for x, y in loader:
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
dist.destroy_process_group()
