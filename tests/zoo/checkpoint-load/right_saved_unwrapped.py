"""The model inside the wrapper is saved."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(0)
inputs = torch.randn(128, 8)
data = TensorDataset(inputs, (inputs[:, 0] > 0).long())
sampler = DistributedSampler(data, seed=1)
loader = DataLoader(data, batch_size=8, sampler=sampler)


def train(model: DistributedDataParallel, epoch: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sampler.set_epoch(epoch)
    for x, y in loader:
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()


model = DistributedDataParallel(nn.Linear(8, 2))
train(model, 0)
path = f"weights-{os.environ['MASTER_PORT']}.pt"
if dist.get_rank() == 0:
    torch.save(model.module.state_dict(), path)
dist.barrier()
resumed = nn.Linear(8, 2)
resumed.load_state_dict(state_dict=torch.load(path, map_location="cpu"), strict=False)
train(DistributedDataParallel(resumed), 1)
dist.destroy_process_group()
