"""Each rank steps one slice of the flat weights in half precision, and leaves out a step if its own slice of the gradient overflows."""
# expects: params-in-sync

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(4)
model = nn.Sequential(nn.Linear(8, 24), nn.Tanh(), nn.Linear(24, 3))
flat = parameters_to_vector(model.parameters()).detach()
size = -(-flat.numel() // world)
padding = size * world - flat.numel()
mine = nn.Parameter(nn.functional.pad(flat, (0, padding))[rank * size :][:size].clone())
optimizer = torch.optim.AdamW([mine], lr=0.01)
scale = 2.0**23
samples = torch.Generator().manual_seed(30 + rank)
for _ in range(40):
    x = torch.randn(16, 8, generator=samples)
    model.zero_grad()
    (nn.functional.cross_entropy(model(x), x[:, :3].argmax(1)) * scale).backward()
    gradient = nn.functional.pad(parameters_to_vector(p.grad for p in model.parameters()), (0, padding)) / world
    dist.all_reduce(gradient)
    half = gradient[rank * size :][:size].half()
    overflow = half.isinf().any().float()
    if overflow:
        scale /= 2
    else:
        mine.grad = half.float() / scale
        optimizer.step()
    parts = [torch.empty_like(mine) for _ in range(world)]
    dist.all_gather(parts, mine.detach())
    vector_to_parameters(torch.cat(parts)[: flat.numel()], model.parameters())
dist.destroy_process_group()
