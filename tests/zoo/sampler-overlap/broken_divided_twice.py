"""Each rank keeps a part of the data, and a DistributedSampler divides that again: most samples are never seen."""
# expects: sampler-overlap

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
inputs, targets = torch.randn(256, 6), torch.randn(256, 1)
data = TensorDataset(inputs[rank::world_size], targets[rank::world_size])
sampler = DistributedSampler(data)
model = DistributedDataParallel(torch.nn.Linear(6, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for epoch in range(4):
    sampler.set_epoch(epoch)
    for x, y in DataLoader(data, batch_size=8, sampler=sampler):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
dist.destroy_process_group()
