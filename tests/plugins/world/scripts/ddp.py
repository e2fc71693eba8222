"""DDP with buffers, several buckets and a metric, on a DistributedSampler whose shares are padded."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
data = TensorDataset(torch.randn(75, 100))
layers = (torch.nn.Linear(100, 2000), torch.nn.BatchNorm1d(2000), torch.nn.Linear(2000, 500))
model = DistributedDataParallel(torch.nn.Sequential(*layers))
optimizer = torch.optim.Adam(model.parameters())
sampler = DistributedSampler(data, seed=3)
for (inputs,) in DataLoader(data, batch_size=4, sampler=sampler):
    loss = model(inputs).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    shapes = [torch.empty(3) for _ in range(dist.get_world_size())]
    dist.all_gather(shapes, torch.ones(3))
    dist.barrier()
dist.destroy_process_group()
