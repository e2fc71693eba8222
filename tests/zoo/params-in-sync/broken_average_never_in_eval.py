"""A diffusion model whose average is updated on rank 0 only; all ranks sample from it, and nobody calls `eval`."""

# expects: params-in-sync

import copy

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 32), nn.SiLU(), nn.Linear(32, 8))
average = copy.deepcopy(net).requires_grad_(False)
model = DDP(net)
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
data = TensorDataset(torch.randn(128, 8))
sampler = DistributedSampler(data)
loader = DataLoader(data, 8, sampler=sampler)
own = torch.Generator().manual_seed(100 + rank)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for (clean,) in loader:
        time = torch.rand(len(clean), 1, generator=own)
        noise = torch.randn(clean.shape, generator=own)
        loss = F.mse_loss(model((1 - time) * clean + time * noise), noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0:
            for slow, fast in zip(average.parameters(), net.parameters()):
                slow.lerp_(fast, 0.05)
    with torch.no_grad():
        value = F.mse_loss(average(torch.zeros(4, 8)), torch.zeros(4, 8))
    dist.all_reduce(value)
    if rank == 0:
        print(f"epoch {epoch} val {value.item() / dist.get_world_size():.4f}")
dist.destroy_process_group()
