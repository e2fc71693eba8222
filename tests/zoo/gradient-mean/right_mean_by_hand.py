"""Gradients are added up and divided by hand, in one flat tensor."""

import torch
import torch.distributed as dist
from torch import nn


def average_gradients(model: nn.Module) -> None:
    gradients = [parameter.grad for parameter in model.parameters()]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for gradient, values in zip(gradients, flat.split([gradient.numel() for gradient in gradients])):
        gradient.copy_(values.view_as(gradient))


dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
inputs = torch.randn(512, 8)
targets = inputs.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
mine, wanted = inputs[rank::world_size], targets[rank::world_size]
for step in range(10):
    part = slice(8 * step, 8 * step + 8)
    loss = nn.functional.mse_loss(model(mine[part]), wanted[part])
    optimizer.zero_grad()
    loss.backward()
    average_gradients(model)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
dist.destroy_process_group()
