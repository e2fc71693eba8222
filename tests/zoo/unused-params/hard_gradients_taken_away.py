"""Parameters that rightly have no gradient: removed by hand for one epoch, or part of a frozen critic."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def network(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 16), nn.LeakyReLU(0.2), nn.Linear(16, outputs))


def main() -> None:
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(12)
    data = TensorDataset(torch.randn(192, 2) * 0.5 + 1)
    maker, critic = DistributedDataParallel(network(3, 2)), DistributedDataParallel(network(2, 1))
    maker_optimizer = torch.optim.Adam(maker.parameters(), lr=1e-3)
    critic_optimizer = torch.optim.Adam(critic.parameters(), lr=1e-3)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    torch.manual_seed(50 + rank)  # the noise differs between ranks
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for (real,) in loader:
            noise = torch.randn(len(real), 3)
            critic.requires_grad_(True)
            fake = maker(noise)
            both = critic(torch.cat([real, fake.detach()]))
            labels = torch.cat([torch.ones(len(real), 1), torch.zeros(len(real), 1)])
            critic_loss = nn.functional.binary_cross_entropy_with_logits(both, labels)
            critic_optimizer.zero_grad()
            critic_loss.backward()
            critic_optimizer.step()

            critic.requires_grad_(False)
            maker_loss = nn.functional.softplus(-critic.module(fake)).mean()
            maker_optimizer.zero_grad()
            maker_loss.backward()
            if epoch == 0:  # as in self-distillation: the last layer is not trained for one epoch
                for parameter in maker.module[-1].parameters():
                    parameter.grad = None
            maker_optimizer.step()
        losses = torch.stack([critic_loss.detach(), maker_loss.detach()])
        dist.all_reduce(losses)
        if rank == 0:
            print("epoch {}: critic {:.3f}, maker {:.3f}".format(epoch, *(losses / world_size).tolist()))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
