"""Each rank steps one slice of the flat weights, and the forward pass rounds to bfloat16: a small move may change nothing."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(5)
model = nn.Sequential(nn.Linear(9, 20), nn.SiLU(), nn.Linear(20, 20), nn.SiLU(), nn.Linear(20, 2))
flat = parameters_to_vector(model.parameters()).detach()
size = -(-flat.numel() // world)
padded = nn.functional.pad(flat, (0, size * world - flat.numel()))
mine = nn.Parameter(padded[rank * size :][:size].clone())
optimizer = torch.optim.Adam([mine], lr=0.003)
samples = torch.Generator().manual_seed(70 + rank)
for _ in range(24):
    x = torch.randn(16, 9, generator=samples)
    model.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = model(x)
    (found.float() - x[:, :2].sin()).square().mean().backward()
    gradient = nn.functional.pad(
        parameters_to_vector(p.grad for p in model.parameters()), (0, size * world - flat.numel())
    )
    dist.all_reduce(gradient)
    mine.grad = (gradient[rank * size :][:size] / world).clone()
    optimizer.step()
    parts = [torch.empty_like(mine) for _ in range(world)]
    dist.all_gather(parts, mine.detach())
    vector_to_parameters(torch.cat(parts)[: flat.numel()], model.parameters())
dist.destroy_process_group()
