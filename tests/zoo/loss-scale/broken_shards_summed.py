"""FSDP2 is told to divide the sum of gradients by 1, instead of by the number of ranks."""

# expects: loss-scale
# also: matches-single

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(0)
inputs = torch.randn(128, 8)
data = TensorDataset(inputs, (inputs[:, 0] > 0).long())
sampler = DistributedSampler(data, seed=1)
loader = DataLoader(data, batch_size=8, sampler=sampler)
model = nn.Sequential(nn.Linear(8, 33), nn.ReLU(), nn.Linear(33, 2))
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
for layer in (model[0], model[2]):
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
for module in (model, model[0], model[2]):
    module.set_force_sum_reduction_for_comms(True)
    module.set_gradient_divide_factor(1.0)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for x, y in loader:
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
dist.destroy_process_group()
