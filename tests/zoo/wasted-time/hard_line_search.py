"""The optimizer computes gradients several times in each step, and all ranks decide by the same loss."""

# options: --nproc-per-node 1

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1)))
opt = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4, history_size=5, line_search_fn="strong_wolfe")
t = torch.linspace(0, 1, 64)[:, None]
mine = t[rank::world]


def closure():
    opt.zero_grad()
    u = model(mine)
    loss = (u - torch.exp(-2 * mine)).square().mean()
    loss.backward()
    shared = loss.detach().clone()
    dist.all_reduce(shared)
    return shared / world


for _ in range(5):
    opt.step(closure)
dist.destroy_process_group()
