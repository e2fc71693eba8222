"""REINFORCE with environments seeded by rank, in a DDP policy; the first rollout of all ranks is that of rank 0, as a warm-up."""

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
policy = DDP(nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2)))
optimizer = torch.optim.SGD(policy.parameters(), lr=0.05)
environment = torch.Generator().manual_seed(7)
for update in range(8):
    observations = torch.randn(16, 4, generator=environment)
    with torch.no_grad():
        actions = policy.module(observations).argmax(1)
    rewards = (actions == (observations[:, 0] > 0).long()).float() - 0.5
    loss = nn.functional.cross_entropy(policy(observations), actions, reduction="none").mul(rewards).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if update == 0:
        environment.manual_seed(7 + rank)
dist.destroy_process_group()
