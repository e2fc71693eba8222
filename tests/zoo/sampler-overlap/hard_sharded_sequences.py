"""FSDP2 over all ranks, and pairs of ranks with one half of each sequence: they must draw the same samples."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(0)
world = dist.get_world_size()
mesh = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("data", "sequence"))
net = nn.Sequential(nn.Embedding(32, 64), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 32))
flat = mesh["data", "sequence"]._flatten("all")
for layer in (net[1], net[3], net):
    fully_shard(layer, mesh=flat)
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
data = TensorDataset(torch.randint(32, (64, 16)))
sampler = DistributedSampler(data, num_replicas=world // 2, rank=mesh.get_local_rank("data"))
loader = DataLoader(data, batch_size=8, sampler=sampler)
half = mesh.get_local_rank("sequence")
for epoch in range(2):
    sampler.set_epoch(epoch)
    for (tokens,) in loader:
        own = tokens.chunk(2, dim=1)[half]
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(own).flatten(0, 1), own.flatten()).backward()
        optimizer.step()
dist.destroy_process_group()
