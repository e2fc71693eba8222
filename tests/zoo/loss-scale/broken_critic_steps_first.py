"""Adversarial training whose critic was made last, steps first and most often, and adds up two batches without dividing."""

# expects: loss-scale

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

dist.init_process_group("gloo")
torch.manual_seed(0)
data = TensorDataset(torch.randn(512, 2) * 0.3 + 1.0, torch.randn(512, 4))
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=4, sampler=sampler, drop_last=True)
generator = DistributedDataParallel(nn.Linear(4, 2))
critic = DistributedDataParallel(nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 1)))
generator_optimizer = torch.optim.SGD(generator.parameters(), lr=1e-3)
critic_optimizer = torch.optim.SGD(critic.parameters(), lr=1e-3)
sampler.set_epoch(0)
for number, (real, noise) in enumerate(loader, 1):
    fake = generator(noise)
    of_fake, of_real = critic(torch.cat([fake.detach(), real])).chunk(2)
    (of_fake - of_real).mean().backward()
    if number % 2 == 0:
        critic_optimizer.step()
        critic_optimizer.zero_grad()
    if number % 4 == 0:
        critic.requires_grad_(False)
        generator_optimizer.zero_grad()
        critic.module(fake).mean().neg().backward()
        generator_optimizer.step()
        critic.requires_grad_(True)
dist.destroy_process_group()
