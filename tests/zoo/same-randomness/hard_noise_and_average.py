"""Denoising diffusion with an average model on every rank, timesteps of each rank's own, samples drawn and saved by rank 0."""

import copy

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.time = nn.Embedding(20, 8)
        self.net = nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Dropout(0.1), nn.Linear(32, 8))

    def forward(self, x, t):
        return self.net(torch.cat([x, self.time(t)], 1))


class EMA:
    def __init__(self, model, decay=0.9):
        self.model, self.decay = copy.deepcopy(model).eval().requires_grad_(False), decay

    @torch.no_grad()
    def update(self, model):
        for mine, theirs in zip(self.model.parameters(), model.parameters()):
            mine.lerp_(theirs, 1 - self.decay)


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
data = TensorDataset(torch.randn(96, 8))
model = DistributedDataParallel(Denoiser())
ema = EMA(model.module)
optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
sampler = DistributedSampler(data, shuffle=True)
loader = DataLoader(data, 4, sampler=sampler)
alphas = torch.linspace(0.99, 0.1, 20)
torch.manual_seed(1234 + rank)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for (x,) in loader:
        t = torch.randint(0, 20, (len(x),))
        noise = torch.randn_like(x)
        a = alphas[t].unsqueeze(1)
        loss = nn.functional.mse_loss(model(a.sqrt() * x + (1 - a).sqrt() * noise, t), noise)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        ema.update(model.module)
    if rank == 0:
        with torch.no_grad():
            sample = torch.randn(4, 8)
            for step in reversed(range(20)):
                sample = sample - 0.05 * ema.model(sample, torch.full((4,), step))
        torch.save({"ema": ema.model.state_dict(), "sample": sample}, "ema.pt")
    dist.barrier()
dist.destroy_process_group()
