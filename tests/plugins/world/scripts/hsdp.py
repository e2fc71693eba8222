"""FSDP2 that shards within pairs of ranks and replicates between them, and a sampler that was written by hand."""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset


class Strided:
    """Every n-th sample from the rank-th on; the rest is left out."""

    def __init__(self, length):
        count = dist.get_world_size()
        self.indices = range(dist.get_rank(), length - length % count, count)

    def __iter__(self):
        return iter(self.indices)

    def __len__(self):
        return len(self.indices)


dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("replicate", "shard"))
model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Linear(64, 32))
for layer in model:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = TensorDataset(torch.randn(75, 32))
for (inputs,) in DataLoader(data, batch_size=2, sampler=Strided(len(data))):
    model(inputs).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
