"""Training by a number of steps: the last epoch is cut short, and each epoch has an order of its own."""

import itertools

import torch
import torch.distributed as dist
from torch import nn, optim
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

MAX_STEPS = 13


def forever(loader: DataLoader):
    for epoch in itertools.count():
        loader.sampler.set_epoch(epoch)
        yield from loader


dist.init_process_group("gloo")
torch.manual_seed(0)
features = torch.rand(160, 3)
data = TensorDataset(features, features.prod(1, keepdim=True))
loader = DataLoader(data, batch_size=5, sampler=DistributedSampler(data, seed=4))
model = DDP(nn.Sequential(nn.Linear(3, 12), nn.ReLU(), nn.Linear(12, 1)))
optimizer = optim.Adam(model.parameters(), lr=2e-3)
for step, (x, y) in zip(range(MAX_STEPS), forever(loader)):
    loss = nn.functional.l1_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
if dist.get_rank() == 0:
    print("done after", step + 1, "steps")
dist.destroy_process_group()
