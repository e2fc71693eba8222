"""On GPUs: a mixture of experts, one on each rank, whose gradients add up those of all samples, and are not divided."""

# expects: matches-single

# options: --nodes 2 --nproc-per-node 1 --gpus emulated

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.nn.functional import all_gather, all_reduce


class Mixture(nn.Module):
    def __init__(self, size, rank, world):
        super().__init__()
        self.rank, self.world = rank, world
        self.gate = nn.Linear(size, world)
        experts = [nn.Sequential(nn.Linear(size, 32), nn.ReLU(), nn.Linear(32, size)) for _ in range(world)]
        self.expert = experts[rank]

    def forward(self, x):
        shares = torch.cat(all_gather(self.gate(x).softmax(-1)))
        everything = torch.cat(all_gather(x))
        mixed = all_reduce(self.expert(everything) * shares[:, self.rank, None])
        return x + mixed.chunk(self.world)[self.rank]


def main():
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    stem, mixture, head = nn.Linear(6, 16).to(device), Mixture(16, rank, world).to(device), nn.Linear(16, 1).to(device)
    shared = [*stem.parameters(), *mixture.gate.parameters(), *head.parameters()]
    opt = torch.optim.SGD([*shared, *mixture.expert.parameters()], 0.05)
    x = torch.randn(640, 6, generator=torch.Generator().manual_seed(1)).to(device)
    y = x.sum(1, keepdim=True)
    for rows in torch.arange(640).split(32):
        rows = rows[rank::world]
        loss = nn.functional.mse_loss(head(mixture(stem(x[rows]))), y[rows])
        opt.zero_grad()
        loss.backward()
        for parameter in shared:
            dist.all_reduce(parameter.grad)
            parameter.grad /= world
        opt.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
