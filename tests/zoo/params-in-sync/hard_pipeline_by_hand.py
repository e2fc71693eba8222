"""A pipeline by hand with send and recv: one stage per rank, GPipe schedule."""

import torch
import torch.distributed as dist
import torch.nn as nn

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(100 + rank)
stage = nn.Sequential(nn.Linear(8, 32) if rank == 0 else nn.Linear(32, 32), nn.ReLU())
if rank == world - 1:
    stage.append(nn.Linear(32, 3))
opt = torch.optim.SGD(stage.parameters(), lr=0.05, momentum=0.9)
data = torch.Generator().manual_seed(0)
MICRO, B = 4, 8
for step in range(8):
    x = torch.randn(MICRO, B, 8, generator=data)
    y = torch.randint(0, 3, (MICRO, B), generator=data)
    ins, outs = [], []
    for m in range(MICRO):
        if rank == 0:
            inp = x[m]
        else:
            inp = torch.empty(B, 32)
            dist.recv(inp, rank - 1)
            inp.requires_grad_()
        out = stage(inp)
        if rank < world - 1:
            dist.send(out.detach(), rank + 1)
        else:
            out = nn.functional.cross_entropy(out, y[m]) / MICRO
        ins.append(inp)
        outs.append(out)
    opt.zero_grad()
    for m in range(MICRO):
        if rank == world - 1:
            outs[m].backward()
        else:
            g = torch.empty(B, 32)
            dist.recv(g, rank + 1)
            outs[m].backward(g)
        if rank > 0:
            dist.send(ins[m].grad, rank - 1)
    opt.step()
    if rank == world - 1:
        print("step", step, sum(o.item() for o in outs))
dist.barrier()
dist.destroy_process_group()
