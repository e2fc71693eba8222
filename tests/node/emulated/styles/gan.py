"""A GAN: two DDP models, two optimizers, detach, requires_grad_ toggled, noise from the CPU."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("nccl")
gpu = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(gpu)
device = torch.device(f"cuda:{gpu}")
torch.manual_seed(999)
generator = nn.Sequential(
    nn.ConvTranspose2d(8, 8, 4, bias=False),
    nn.BatchNorm2d(8),
    nn.ReLU(True),
    nn.ConvTranspose2d(8, 1, 4, 2, 1),
    nn.Tanh(),
)
critic = nn.Sequential(nn.Conv2d(1, 8, 4, 2, 1), nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(128, 1))
generator, critic = (DDP(net.to(device), device_ids=[gpu], broadcast_buffers=False) for net in (generator, critic))
criterion = nn.BCEWithLogitsLoss()
optimizer_d = torch.optim.Adam(critic.parameters(), lr=2e-3, betas=(0.5, 0.999))
optimizer_g = torch.optim.Adam(generator.parameters(), lr=2e-3, betas=(0.5, 0.999))
torch.manual_seed(dist.get_rank())
for step in range(3):
    real = torch.rand(8, 1, 8, 8).to(device)
    label = torch.full((8,), 1.0, dtype=torch.float, device=device)
    critic.requires_grad_(True)
    critic.zero_grad()
    fake = generator(torch.randn(8, 8, 1, 1).to(device))
    loss_d = criterion(critic(real).view(-1), label) + criterion(
        critic(fake.detach()).view(-1), torch.zeros_like(label)
    )
    loss_d.backward()
    optimizer_d.step()
    critic.requires_grad_(False)
    generator.zero_grad()
    loss_g = criterion(critic(fake).view(-1), label.fill_(1))
    loss_g.backward()
    optimizer_g.step()
    if dist.get_rank() == 0:
        print(f"discriminator loss {loss_d.item():.6f} generator loss {loss_g.item():.6f}", flush=True)
dist.destroy_process_group()
