"""The reference policy is copied before DDP makes the ranks equal, so each rank has one of its own."""
# expects: params-in-sync

import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(3 + dist.get_rank())
policy = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4))
reference = copy.deepcopy(policy).requires_grad_(False)
policy = DistributedDataParallel(policy)
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
for _ in range(20):
    states = torch.randn(32, 6)
    with torch.no_grad():
        known = reference(states).log_softmax(-1)
    found = policy(states).log_softmax(-1)
    reward = found.exp()[:, 0].mean()
    divergence = (found.exp() * (found - known)).sum(-1).mean()
    optimizer.zero_grad()
    (0.1 * divergence - reward).backward()
    optimizer.step()
dist.destroy_process_group()
