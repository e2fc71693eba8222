"""Ratings from item vectors and item biases, which begin as zeros; the rows of both are dealt out to the ranks."""

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as F
from torch import nn

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
ITEMS, WIDTH, BATCH = 48, 6, 32
torch.manual_seed(0)
vectors = torch.randn(ITEMS, WIDTH)


class Items(nn.Module):
    """Item i is held by rank i % world."""

    def __init__(self) -> None:
        super().__init__()
        self.vectors = nn.Parameter(vectors[rank::world].clone())
        self.bias = nn.Parameter(torch.zeros(ITEMS // world, 1))

    def forward(self, items):
        own = (items % world == rank).float()[:, None]
        at = items // world * own[:, 0].long()
        found = torch.cat([self.vectors[at], self.bias[at]], 1) * own
        return F.all_reduce(found)


items, head = Items(), nn.Linear(WIDTH, 1, bias=False)
opt = torch.optim.SGD([*items.parameters(), *head.parameters()], lr=0.5)
draws = torch.Generator().manual_seed(2)
for _ in range(10):
    batch = torch.randint(ITEMS, (BATCH,), generator=draws)
    found = items(batch)
    ours = slice(rank * BATCH // world, (rank + 1) * BATCH // world)
    vector, bias = found[ours].split([WIDTH, 1], 1)
    loss = ((head(vector) + bias).flatten() - (batch[ours] % 7).float()).square().sum() / BATCH
    opt.zero_grad()
    loss.backward()
    dist.all_reduce(head.weight.grad)
    opt.step()
dist.destroy_process_group()
