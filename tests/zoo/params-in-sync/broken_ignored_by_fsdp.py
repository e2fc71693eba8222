"""FSDP2 leaves out a scale, and nobody reduces its gradient."""

# expects: params-in-sync

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(4, 8)
        self.body = nn.Linear(8, 8)
        self.scale = nn.Parameter(torch.ones(8))
        self.head = nn.Linear(8, 1)

    def forward(self, x):
        return self.head(torch.relu(self.body(torch.relu(self.embed(x)))) * self.scale)


dist.init_process_group("gloo")
torch.manual_seed(0)
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
net = Net()
fully_shard(net.body, mesh=mesh)
fully_shard(net, mesh=mesh, ignored_params={net.scale})
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2, foreach=False)  # foreach refuses DTensors among plain tensors
data = TensorDataset(torch.randn(128, 4), torch.randn(128, 1))
sampler = DistributedSampler(data)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for inputs, targets in DataLoader(data, batch_size=8, sampler=sampler):
        optimizer.zero_grad()
        nn.functional.mse_loss(net(inputs), targets).backward()
        optimizer.step()
dist.destroy_process_group()
