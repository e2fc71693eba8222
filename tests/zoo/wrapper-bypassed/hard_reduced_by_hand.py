"""The inner module is called, and its gradients are averaged by hand before each step: DDP only made the weights equal."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group(backend="gloo")
torch.manual_seed(21)
table = torch.randn(320, 5)
rows = TensorDataset(table, table @ torch.tensor([[1.0], [-2.0], [0.5], [3.0], [0.0]]))
sampler = DistributedSampler(rows, shuffle=True, seed=4)
model = DDP(nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def average_gradients(network: nn.Module) -> None:
    for parameter in network.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


for epoch in range(3):
    sampler.set_epoch(epoch)
    for inputs, targets in DataLoader(rows, batch_size=8, sampler=sampler):
        optimizer.zero_grad()
        loss = nn.functional.l1_loss(model.module(inputs), targets)
        loss.backward()
        average_gradients(model)
        optimizer.step()
    dist.all_reduce(loss.detach_())
    if dist.get_rank() == 0:
        print(epoch, loss.item() / dist.get_world_size())
del model, optimizer
dist.destroy_process_group()
