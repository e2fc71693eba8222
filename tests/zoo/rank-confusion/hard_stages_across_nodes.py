"""A pipeline over nodes with data parallelism within each: the sampler's rank is that of the data-parallel group."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

WIDTH, BATCH = 8, 6
dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("pp", "dp"))
stage, shard = mesh["pp"].get_local_rank(), mesh["dp"].get_local_rank()
peer = (dist.get_rank() + dist.get_world_size() // 2) % dist.get_world_size()
torch.manual_seed(stage)
part = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) if stage == 0 else nn.Linear(WIDTH, 1)
optimizer = torch.optim.SGD(part.parameters(), lr=0.05)
values = torch.randn(96, WIDTH, generator=torch.Generator().manual_seed(2))
data = TensorDataset(values, values.mean(1, keepdim=True))
sampler = DistributedSampler(data, num_replicas=mesh["dp"].size(), rank=shard)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for inputs, targets in DataLoader(data, BATCH, sampler=sampler):
        optimizer.zero_grad()
        if stage == 0:
            hidden = part(inputs)
            dist.send(hidden.detach(), peer)
            gradient = torch.empty_like(hidden)
            dist.recv(gradient, peer)
            hidden.backward(gradient)
        else:
            hidden = torch.empty(BATCH, WIDTH)
            dist.recv(hidden, peer)
            nn.functional.mse_loss(part(hidden.requires_grad_()), targets).backward()
            dist.send(hidden.grad, peer)
        for each in part.parameters():
            dist.all_reduce(each.grad, op=dist.ReduceOp.SUM, group=mesh["dp"].get_group())
            each.grad /= mesh["dp"].size()
        optimizer.step()
dist.destroy_process_group()
