"""Every rank seeds differently and splits without a generator: an index means another sample on each rank."""

# expects: sampler-overlap

import random

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset, random_split


def seed_everything(seed):
    random.seed(seed)
    torch.manual_seed(seed)


class DataModule:
    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        self.full = TensorDataset(torch.randn(80, 5, generator=generator), torch.randn(80, 1, generator=generator))

    def setup(self):
        self.train, self.val = random_split(self.full, [64, 16])

    def train_dataloader(self):
        self.sampler = DistributedSampler(self.train)
        return DataLoader(self.train, 4, sampler=self.sampler)


dist.init_process_group("gloo")
seed_everything(13 + dist.get_rank())
module = DataModule()
module.setup()
model = DistributedDataParallel(nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 1)))
optimizer = torch.optim.SGD(model.parameters(), 0.05)
loader = module.train_dataloader()
for epoch in range(2):
    module.sampler.set_epoch(epoch)
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
dist.destroy_process_group()
