"""Ranks use different numbers of micro-batches, but reduce gradients once per step, after the last one."""

from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(12)
data = TensorDataset(torch.randn(192, 6), torch.randn(192, 2))
sampler = DistributedSampler(data, seed=40)
size = 4 if dist.get_rank() % 2 else 2  # as many as fit into this rank's memory
loader = DataLoader(data, batch_size=size, sampler=sampler)
micro_batches = 8 // size
model = DDP(nn.Linear(6, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for number, (x, y) in enumerate(loader, start=1):
        is_last = number % micro_batches == 0
        with nullcontext() if is_last else model.no_sync():
            (nn.functional.mse_loss(model(x), y) / micro_batches).backward()
        if is_last:
            optimizer.step()
            optimizer.zero_grad()
dist.destroy_process_group()
