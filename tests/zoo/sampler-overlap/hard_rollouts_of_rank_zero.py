"""Rank 0 acts and broadcasts its rollout; every rank learns from all of it, and averages gradients so that weights stay equal."""

import torch
import torch.distributed as dist
import torch.nn as nn

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
policy = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))
optimizer = torch.optim.SGD(policy.parameters(), lr=0.05)
environment = torch.Generator().manual_seed(7)
for update in range(8):
    observations = torch.randn(16, 4, generator=environment) if rank == 0 else torch.empty(16, 4)
    dist.broadcast(observations, src=0)
    with torch.no_grad():
        actions = policy(observations).argmax(1)
    rewards = (actions == (observations[:, 0] > 0).long()).float() - 0.5
    loss = nn.functional.cross_entropy(policy(observations), actions, reduction="none").mul(rewards).mean()
    optimizer.zero_grad()
    loss.backward()
    for p in policy.parameters():
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()
    optimizer.step()
dist.destroy_process_group()
