"""Two members of an ensemble, each trained by DDP in its own half of the ranks."""

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
half = world // 2
groups = [dist.new_group(list(range(half))), dist.new_group(list(range(half, world)))]
member = rank // half
torch.manual_seed(member)
model = DDP(nn.Sequential(nn.Linear(10, 20), nn.Tanh(), nn.Linear(20, 1)), process_group=groups[member])
opt = torch.optim.Adam(model.parameters(), lr=1e-2 * (1 + member))
g = torch.Generator().manual_seed(0)
X = torch.randn(128, 10, generator=g)
Y = X.sum(1, keepdim=True)
ds = torch.utils.data.TensorDataset(X, Y)
s = torch.utils.data.DistributedSampler(ds, num_replicas=half, rank=rank % half, seed=member)
for epoch in range(2):
    s.set_epoch(epoch)
    for x, y in torch.utils.data.DataLoader(ds, 8, sampler=s):
        loss = nn.functional.mse_loss(model(x), y)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
with torch.no_grad():
    pred = model.module(X) / half
    dist.all_reduce(pred)
    if rank == 0:
        print("ensemble", nn.functional.mse_loss(pred / 2, Y).item())
dist.destroy_process_group()
