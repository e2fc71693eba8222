"""Two halves of a loss, and two micro-batches: each backward pass is of a mean divided by four, as it should be."""

import contextlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

MICRO_BATCHES = 2


class Accelerator:
    """What a library does: it divides by the number of micro-batches."""

    def backward(self, loss: torch.Tensor) -> None:
        (loss / MICRO_BATCHES).backward()


dist.init_process_group("gloo")
torch.manual_seed(0)
inputs = torch.randn(256, 6)
data = TensorDataset(inputs, (inputs.sum(1) > 0).long())
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=4, sampler=sampler)
model = DistributedDataParallel(nn.Linear(6, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
accelerator = Accelerator()
for epoch in range(2):
    sampler.set_epoch(epoch)
    for number, (x, y) in enumerate(loader, 1):
        is_last = number % MICRO_BATCHES == 0
        with contextlib.nullcontext() if is_last else model.no_sync():
            scores = model(x)
            loss = (nn.functional.cross_entropy(scores, y) + nn.functional.cross_entropy(-scores, 1 - y)) / 2
            accelerator.backward(loss)
        if is_last:
            optimizer.step()
            optimizer.zero_grad()
dist.destroy_process_group()
