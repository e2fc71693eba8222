"""The condition for no_sync is inverted: the first micro-step reduces, the last one before step() does not."""

# expects: params-in-sync
# also: matches-single

import contextlib

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Fabric:
    def __init__(self):
        dist.init_process_group("gloo")
        self.rank = dist.get_rank()

    def setup(self, model, optimizer):
        return DistributedDataParallel(model), optimizer

    def setup_dataloaders(self, loader):
        sampler = DistributedSampler(loader.dataset)
        return DataLoader(loader.dataset, loader.batch_size, sampler=sampler), sampler

    def no_backward_sync(self, model, enabled):
        return model.no_sync() if enabled else contextlib.nullcontext()


fabric = Fabric()
torch.manual_seed(11)
model = nn.Sequential(nn.Linear(10, 20), nn.GELU(), nn.Linear(20, 2))
model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), 0.05))
data = TensorDataset(torch.randn(128, 10), torch.randint(0, 2, (128,)))
loader, sampler = fabric.setup_dataloaders(DataLoader(data, 4))
sampler.set_epoch(0)
for index, (x, y) in enumerate(loader):
    is_accumulating = (index + 1) % 2 == 0
    with fabric.no_backward_sync(model, enabled=is_accumulating):
        (nn.functional.cross_entropy(model(x), y) / 2).backward()
    if is_accumulating:
        optimizer.step()
        optimizer.zero_grad()
dist.destroy_process_group()
