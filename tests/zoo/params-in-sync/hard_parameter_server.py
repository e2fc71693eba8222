"""Rank 0 serves parameters, the others compute gradients: synchronous parameter server."""

import torch
import torch.distributed as dist
import torch.nn as nn

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0 if rank == 0 else 99)
model = nn.Linear(6, 3)
opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)  # only the server steps
g = torch.Generator().manual_seed(rank)
for step in range(15):
    for p in model.parameters():
        dist.broadcast(p.data, src=0)
    if rank == 0:
        grads = [torch.zeros_like(p) for p in model.parameters()]
    else:
        x = torch.randn(16, 6, generator=g)
        y = x[:, :3].argmax(1)
        model.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        grads = [p.grad for p in model.parameters()]
    for gr in grads:
        dist.reduce(gr, dst=0)
    if rank == 0:
        for p, gr in zip(model.parameters(), grads):
            p.grad = gr / (world - 1)
        opt.step()
if rank == 1:
    print("final loss", loss.item())
dist.barrier()
dist.destroy_process_group()
