"""Rank 0 prepares the data for six seconds, and the others wait."""

# expects: wasted-time

import contextlib
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
rank = dist.get_rank()
if rank == 0:
    time.sleep(6)  # the preparation
dist.barrier()
torch.manual_seed(0)
inputs = torch.randn(128, 8)
data = TensorDataset(inputs, (inputs[:, 0] > 0).long())
sampler = DistributedSampler(data, seed=1)
loader = DataLoader(data, batch_size=8, sampler=sampler)

model = DistributedDataParallel(nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for number, (x, y) in enumerate(loader):
        is_last = number % 2 == 1
        with contextlib.nullcontext() if is_last else model.no_sync():
            (cross_entropy(model(x), y) / 2).backward()
        if is_last:
            optimizer.step()
            optimizer.zero_grad()
dist.destroy_process_group()
