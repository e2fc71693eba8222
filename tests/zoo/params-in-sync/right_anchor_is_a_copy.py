"""Local SGD: the change since the last exchange, against a copy of the weights, is averaged over the ranks."""

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
anchors = [each.detach().clone() for each in model.parameters()]
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
samples = torch.Generator().manual_seed(10 + dist.get_rank())


@torch.no_grad()
def exchange():
    for weight, anchor in zip(model.parameters(), anchors):
        change = weight - anchor
        dist.all_reduce(change)
        anchor.add_(change / dist.get_world_size())
        weight.copy_(anchor)


for step in range(1, 25):
    inputs = torch.randn(16, 8, generator=samples)
    optimizer.zero_grad()
    (model(inputs) - inputs.sum(1, keepdim=True)).square().mean().backward()
    optimizer.step()
    if step % 4 == 0:
        exchange()
dist.destroy_process_group()
