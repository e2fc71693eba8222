"""Each rank steps one slice of the flat weights; going back to a checkpoint gives all ranks the momentum of rank 0's slice."""
# expects: checkpoint-load

import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(3)
model = nn.Sequential(nn.Linear(7, 16), nn.Tanh(), nn.Linear(16, 1))
flat = parameters_to_vector(model.parameters()).detach()
mine = nn.Parameter(torch.tensor_split(flat, world)[rank].clone())
optimizer = torch.optim.Adam([mine], lr=0.02)
checkpoint: list[object] = [None]
samples = torch.Generator().manual_seed(50 + rank)

for step in range(16):
    if step == 6 and rank == 0:
        checkpoint = [copy.deepcopy({"model": model.state_dict(), "optimizer": optimizer.state_dict()})]
    if step == 10:
        dist.broadcast_object_list(checkpoint, src=0)
        model.load_state_dict(checkpoint[0]["model"])
        optimizer.load_state_dict(checkpoint[0]["optimizer"])
        with torch.no_grad():
            mine.copy_(torch.tensor_split(parameters_to_vector(model.parameters()), world)[rank])
    x = torch.randn(12, 7, generator=samples)
    model.zero_grad()
    (model(x) - x.mean(1, keepdim=True)).square().mean().backward()
    gradient = torch.cat([each.grad.flatten() for each in model.parameters()])
    dist.all_reduce(gradient)
    mine.grad = torch.tensor_split(gradient / world, world)[rank].clone()
    optimizer.step()
    parts = [torch.empty_like(each) for each in torch.tensor_split(flat, world)]
    for owner, part in enumerate(parts):
        if owner == rank:
            part.copy_(mine.detach())
        dist.broadcast(part, src=owner)
    vector_to_parameters(torch.cat(parts), model.parameters())
dist.destroy_process_group()
