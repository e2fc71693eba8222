"""Under FSDP a function clips by the norm of all shards, which it adds up over the ranks."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def clip_gradients(parameters, limit):
    shards = [parameter.grad.to_local() for parameter in parameters]
    norm = torch.linalg.vector_norm(torch.stack([shard.norm() for shard in shards]))
    square = norm**2
    dist.all_reduce(square)
    norm = square.sqrt()
    for shard in shards:
        shard.mul_((limit / norm).clamp(max=1.0))


dist.init_process_group("gloo")
torch.manual_seed(0)
inputs = torch.randn(128, 8)
data = TensorDataset(inputs, (inputs[:, 0] > 0).long())
sampler = DistributedSampler(data, seed=1)
loader = DataLoader(data, batch_size=8, sampler=sampler)

model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for x, y in loader:
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        clip_gradients(model.parameters(), 1.0)
        optimizer.step()
dist.destroy_process_group()
