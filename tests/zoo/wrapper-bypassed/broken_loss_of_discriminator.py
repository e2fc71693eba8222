"""The discriminator's step calls D.module, so that its gradients are never reduced."""

# expects: wrapper-bypassed
# also: params-in-sync

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class GANTrainer:
    def __init__(self):
        self.rank = dist.get_rank()
        torch.manual_seed(0)
        self.data = TensorDataset(torch.randn(96, 2) * 0.3 + 1)
        self.G = DDP(nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2)))
        self.D = DDP(nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1)))
        self.g_opt = torch.optim.Adam(self.G.parameters(), 1e-3)
        self.d_opt = torch.optim.Adam(self.D.parameters(), 1e-3)
        self.sampler = DistributedSampler(self.data)
        self.loader = DataLoader(self.data, 4, sampler=self.sampler)

    def d_step(self, x):
        fake = self.G.module(torch.randn(len(x), 4)).detach()
        loss = nn.functional.relu(1 - self.D.module(x)).mean() + nn.functional.relu(1 + self.D.module(fake)).mean()
        self.d_opt.zero_grad()
        loss.backward()
        self.d_opt.step()

    def g_step(self, n):
        loss = -self.D.module(self.G(torch.randn(n, 4))).mean()
        self.g_opt.zero_grad()
        loss.backward()
        self.g_opt.step()

    def fit(self):
        torch.manual_seed(self.rank + 1)
        self.sampler.set_epoch(0)
        for (x,) in self.loader:
            self.d_step(x)
            self.g_step(len(x))


dist.init_process_group("gloo")
GANTrainer().fit()
dist.destroy_process_group()
