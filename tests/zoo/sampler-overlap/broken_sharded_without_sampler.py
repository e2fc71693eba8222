"""FSDP2 with a loader that shuffles alike on all ranks: nobody divides the samples."""

# expects: sampler-overlap

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(0)
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
net = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 1))
for layer in (net[0], net[2], net):
    fully_shard(layer, mesh=mesh)
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
data = TensorDataset(torch.randn(96, 4), torch.randn(96, 1))
loader = DataLoader(data, batch_size=8, shuffle=True, generator=torch.Generator().manual_seed(1))
for epoch in range(2):
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(net(inputs), targets)
        loss.backward()
        optimizer.step()
    dist.all_reduce(loss.detach(), op=dist.ReduceOp.AVG if dist.get_backend() == "nccl" else dist.ReduceOp.SUM)
dist.destroy_process_group()
