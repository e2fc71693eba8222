"""A GAN: the critic's pass through DDP and the generator's pass through the frozen critic each take a backward pass."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    generator = DistributedDataParallel(nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2)))
    critic = DistributedDataParallel(nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(), nn.Linear(16, 1)))
    improve_generator = torch.optim.Adam(generator.parameters(), 1e-3)
    improve_critic = torch.optim.Adam(critic.parameters(), 1e-3)
    data = torch.randn(640, 2, generator=torch.Generator().manual_seed(1)) + 2
    judge = nn.functional.binary_cross_entropy_with_logits
    noise = torch.Generator().manual_seed(100 + rank)
    for rows in torch.arange(640).split(64):
        real = data[rows[rank::world]]
        fake = generator(torch.randn(len(real), 4, generator=noise)).detach()
        scores = critic(torch.cat([real, fake]))
        loss = judge(scores, torch.cat([torch.ones(len(real), 1), torch.zeros(len(fake), 1)]))
        improve_critic.zero_grad()
        loss.backward()
        improve_critic.step()
        critic.requires_grad_(False)
        scores = critic.module(generator(torch.randn(len(real), 4, generator=noise)))
        loss = judge(scores, torch.ones_like(scores))
        improve_generator.zero_grad()
        loss.backward()
        improve_generator.step()
        critic.requires_grad_(True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
