"""Ranks average their weights with neighbours of a square, and the side alternates each time that they meet."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

EVERY, STEPS = 2, 24
dist.init_process_group("gloo")
rank, sides = dist.get_rank(), (dist.get_world_size() - 1).bit_length()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
source = torch.Generator().manual_seed(rank)


@torch.no_grad()
def average(step: int) -> None:
    peer = rank ^ (1 << (step % sides))
    mine = parameters_to_vector(model.parameters())
    theirs = torch.empty_like(mine)
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, mine, peer), dist.P2POp(dist.irecv, theirs, peer)]):
        work.wait()
    vector_to_parameters((mine + theirs) / 2, model.parameters())


for step in range(STEPS):
    batch = torch.randn(16, 6, generator=source)
    loss = (model(batch).squeeze(1) - (rank + 1) * batch.sum(1)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % EVERY == 0:
        average(step // EVERY)
dist.destroy_process_group()
