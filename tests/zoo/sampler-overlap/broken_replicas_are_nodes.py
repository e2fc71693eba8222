"""The sampler counts nodes instead of ranks: both ranks of a node train on the same samples."""

# ranks per node: 2
# expects: sampler-overlap

import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class State:
    def __init__(self):
        dist.init_process_group("gloo")
        self.process_index = int(os.environ["RANK"])
        self.local_process_index = int(os.environ["LOCAL_RANK"])
        self.local_world = int(os.environ["LOCAL_WORLD_SIZE"])
        self.num_machines = dist.get_world_size() // self.local_world
        self.machine = self.process_index // self.local_world


def prepare_loader(dataset, state, batch_size):
    sampler = DistributedSampler(dataset, num_replicas=state.num_machines, rank=state.machine, shuffle=True)
    return DataLoader(dataset, batch_size, sampler=sampler), sampler


state = State()
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 1)))
optimizer = torch.optim.SGD(model.parameters(), 0.02)
x = torch.randn(64, 6)
loader, sampler = prepare_loader(TensorDataset(x, x.mean(1, keepdim=True)), state, 4)
sampler.set_epoch(0)
for a, b in loader:
    optimizer.zero_grad()
    nn.functional.mse_loss(model(a), b).backward()
    optimizer.step()
dist.destroy_process_group()
