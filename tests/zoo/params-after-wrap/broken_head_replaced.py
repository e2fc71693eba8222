"""A new output layer is added after wrapping: DDP waits for the gradients of the old one, and fails."""
# expects: params-after-wrap
# also: params-in-sync, teardown, matches-single

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(8)
images = torch.rand(128, 1, 6, 6)
data = TensorDataset(images, torch.arange(128) % 5)
layers = {"conv": nn.Conv2d(1, 4, 3), "act": nn.ReLU(), "flat": nn.Flatten(), "head": nn.Linear(64, 10)}
network = nn.Sequential()
for name, layer in layers.items():
    network.add_module(name, layer)
network = DistributedDataParallel(network)
network.module.head = nn.Linear(64, 5)
optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
sampler = DistributedSampler(data)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for batch, labels in DataLoader(data, batch_size=8, sampler=sampler):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(network(batch), labels)
        loss.backward()
        optimizer.step()
dist.destroy_process_group()
