"""GAN with two wrapped networks, two discriminator steps per generator step, and noise of each rank's own."""

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def requires_grad(module, flag):
    for p in module.parameters():
        p.requires_grad_(flag)


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
real = torch.randn(128, 2) * 0.3 + torch.tensor([1.0, -1.0])
G = DDP(nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2)), broadcast_buffers=False)
D = DDP(nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1)), broadcast_buffers=False)
g_opt = torch.optim.Adam(G.parameters(), 1e-3, betas=(0.5, 0.999))
d_opt = torch.optim.Adam(D.parameters(), 1e-3, betas=(0.5, 0.999))
sampler = DistributedSampler(TensorDataset(real))
loader = DataLoader(TensorDataset(real), 4, sampler=sampler, drop_last=True)
torch.manual_seed(10 + rank)
bce = nn.functional.binary_cross_entropy_with_logits
for epoch in range(1):
    sampler.set_epoch(epoch)
    for i, (x,) in enumerate(loader):
        z = torch.randn(len(x), 4)
        with torch.no_grad():
            fake = G.module(z)
        scores = D(torch.cat([x, fake]))
        d_loss = bce(scores, torch.cat([torch.ones(len(x), 1), torch.zeros(len(x), 1)]))
        d_opt.zero_grad()
        d_loss.backward()
        d_opt.step()
        if i % 2 == 1:
            requires_grad(D, False)
            g_loss = bce(D.module(G(torch.randn(len(x), 4))), torch.ones(len(x), 1))
            g_opt.zero_grad()
            g_loss.backward()
            g_opt.step()
            requires_grad(D, True)
dist.destroy_process_group()
