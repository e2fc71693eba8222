"""The learning rate falls when the mean loss of all ranks stops falling: with one rank it may fall at another step."""

import torch
import torch.distributed as dist
from torch import nn, optim
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
size = dist.get_world_size()
torch.manual_seed(31)
points = torch.randn(192, 6)
pairs = TensorDataset(points, torch.randn(192, 1))
net = DistributedDataParallel(nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1)))
sgd = optim.SGD(net.parameters(), lr=0.01 * size)
plateau = optim.lr_scheduler.ReduceLROnPlateau(sgd, factor=0.3, patience=0, threshold=0.02)
sampler = DistributedSampler(pairs, seed=31)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for inputs, target in DataLoader(pairs, batch_size=8, sampler=sampler):
        loss = nn.functional.mse_loss(net(inputs), target)
        sgd.zero_grad()
        loss.backward()
        sgd.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        plateau.step(mean.item() / size)
dist.destroy_process_group()
