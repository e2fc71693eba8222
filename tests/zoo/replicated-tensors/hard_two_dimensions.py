"""2 x 2: data parallel times tensor parallel by DeviceMesh and parallelize_module."""

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(16, 64), nn.Linear(64, 16)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


dist.init_process_group("gloo")
world = dist.get_world_size()
mesh = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("dp", "tp"))
torch.manual_seed(3)
model = nn.Sequential(MLP(), MLP(), nn.Linear(16, 4))
for block in model[:2]:
    parallelize_module(block, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
for block in model[:2]:
    fully_shard(block, mesh=mesh["dp"])
fully_shard(model, mesh=mesh["dp"])
opt = torch.optim.Adam(model.parameters(), lr=3e-3, foreach=False)
X = torch.randn(256, 16, generator=torch.Generator().manual_seed(0))
Y = X[:, :4].argmax(1)
dp_rank, dp_size = mesh["dp"].get_local_rank(), mesh["dp"].size()
ds = torch.utils.data.TensorDataset(X, Y)
sampler = torch.utils.data.DistributedSampler(ds, num_replicas=dp_size, rank=dp_rank, seed=1)
loader = torch.utils.data.DataLoader(ds, batch_size=16, sampler=sampler)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    if dist.get_rank() == 0:
        print("epoch", epoch, loss.item())
dist.destroy_process_group()
