"""All ranks draw the same order, and each takes its part of it."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
features = torch.randn(192, 6)
targets = features.sum(dim=1, keepdim=True)
model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for epoch in range(3):
    order = torch.randperm(len(features), generator=torch.Generator().manual_seed(epoch))
    for batch in order[rank::world].split(8):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(features[batch]), targets[batch]).backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= world
        optimizer.step()
dist.destroy_process_group()
