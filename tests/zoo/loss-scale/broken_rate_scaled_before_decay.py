"""The optimizer's learning rate grows with the world size, and the ramp before the exponential decay multiplies by it again."""
# expects: loss-scale

import torch
import torch.distributed as dist
from torch import nn, optim
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

RAMP = 4

dist.init_process_group("gloo")
size = dist.get_world_size()
torch.manual_seed(21)
series = torch.randn(192, 12)
pairs = TensorDataset(series, series.cumsum(1)[:, -1:])
net = DistributedDataParallel(nn.Sequential(nn.Linear(12, 20), nn.Tanh(), nn.Linear(20, 1)))
sgd = optim.SGD(net.parameters(), lr=1e-3 * size)
ramp = optim.lr_scheduler.LambdaLR(sgd, lambda step: 1 + (size - 1) * min(1.0, step / RAMP))
decay = optim.lr_scheduler.ExponentialLR(sgd, gamma=0.97)
sampler = DistributedSampler(pairs, seed=21)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for window, target in DataLoader(pairs, batch_size=8, sampler=sampler):
        loss = nn.functional.smooth_l1_loss(net(window), target)
        sgd.zero_grad()
        loss.backward()
        sgd.step()
        if ramp.last_epoch < RAMP:
            ramp.step()
        else:
            decay.step()
dist.destroy_process_group()
