"""Two ranks train each member of an ensemble, and each member has drawn samples of its own."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
MEMBERS = 2
per = world // MEMBERS
groups = [dist.new_group(list(range(m * per, (m + 1) * per))) for m in range(MEMBERS)]
member = rank // per
torch.manual_seed(5)
x = torch.randn(96, 3)
full = TensorDataset(x, torch.sin(x.sum(1, keepdim=True)))
picks = torch.randint(0, 96, (96,), generator=torch.Generator().manual_seed(40 + member)).tolist()
data = Subset(full, picks)
sampler = DistributedSampler(data, num_replicas=per, rank=rank % per, seed=member)
torch.manual_seed(90 + member)
model = nn.parallel.DistributedDataParallel(
    nn.Sequential(nn.Linear(3, 20), nn.Tanh(), nn.Linear(20, 1)), process_group=groups[member]
)
opt = torch.optim.Adam(model.parameters(), 1e-2)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for x, y in DataLoader(data, 8, sampler=sampler):
        opt.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        opt.step()
dist.destroy_process_group()
