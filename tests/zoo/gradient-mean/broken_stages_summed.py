"""Two stages on two replicas add up gradients, and nothing divides by the number of replicas."""

# expects: gradient-mean

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

dist.init_process_group("gloo")
rank = dist.get_rank()
replica, is_first = rank // 2, rank % 2 == 0
peer = rank + 1 if is_first else rank - 1
groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
torch.manual_seed(rank % 2)
stage = nn.Sequential(nn.Linear(8, 16), nn.Tanh()) if is_first else nn.Linear(16, 4)
optimizer = torch.optim.SGD(stage.parameters(), 0.1)
for step in range(6):
    generator = torch.Generator().manual_seed(2 * step + replica)
    x, y = torch.randn(4, 5, 8, generator=generator), torch.randint(0, 4, (4,), generator=generator)
    optimizer.zero_grad()
    if is_first:
        pooled = stage(x).mean(1)
        dist.send(pooled.detach(), peer)
        gradient = torch.empty_like(pooled)
        dist.recv(gradient, peer)
        pooled.backward(gradient)
    else:
        received = torch.empty(4, 16)
        dist.recv(received, peer)
        received.requires_grad_()
        loss = F.cross_entropy(stage(received), y)
        loss.backward()
        dist.send(received.grad, peer)
    for parameter in stage.parameters():
        dist.all_reduce(parameter.grad, group=groups[rank % 2])
    optimizer.step()
dist.destroy_process_group()
