"""Diffusion by a step function: gradients are clipped by their scaled norm, then unscaled to be logged."""

# expects: gradient-clipping

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Denoiser(nn.Module):
    def __init__(self, width=12):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(width + 1, 32), nn.SiLU(), nn.Linear(32, width))

    def forward(self, noisy, t):
        return self.net(torch.cat([noisy, t], dim=1))


class Trainer:
    def __init__(self, model, max_norm):
        self.model, self.max_norm = model, max_norm
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=256.0)

    def train_step(self, images, generator):
        noise = torch.randn(images.shape, generator=generator)
        t = torch.rand(len(images), 1, generator=generator)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            predicted = self.model(images * (1 - t) + noise * t, t)
        self.scaler.scale((predicted.float() - noise).square().mean()).backward()
        self.optimize()

    def optimize(self):
        nn.utils.clip_grad_norm_(self.model.parameters(), self.max_norm)
        self.scaler.unscale_(self.optimizer)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()


dist.init_process_group("gloo")
torch.manual_seed(0)
trainer = Trainer(DDP(Denoiser()), max_norm=1.0)
generator = torch.Generator().manual_seed(50 + dist.get_rank())
for _ in range(8):
    trainer.train_step(torch.randn(6, 12, generator=generator), generator)
dist.destroy_process_group()
