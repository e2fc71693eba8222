"""Draws samples by their loss: ranks compute the losses of their shares, which are put together after each epoch."""

# expects: matches-single

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset


def losses_of(network: nn.Module, data: TensorDataset) -> torch.Tensor:
    shares = DataLoader(data, batch_size=40, sampler=DistributedSampler(data, shuffle=False))
    with torch.no_grad():
        found = [nn.functional.mse_loss(network(x), y, reduction="none").mean(1) for x, y in shares]
    mine = torch.cat(found)
    gathered = [torch.zeros_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, mine)
    return torch.cat(gathered)[: len(data)]


def main(epochs: int = 4, batch: int = 32) -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(12)
    x = torch.randn(320, 8)
    data = TensorDataset(x, torch.where(x[:, :1] > 1, x[:, 1:3] * 4, x[:, 3:5]))
    network = nn.Sequential(nn.Linear(8, 24), nn.Tanh(), nn.Linear(24, 2))
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    weights = torch.ones(len(data))
    for epoch in range(epochs):
        generator = torch.Generator().manual_seed(epoch)
        chosen = torch.multinomial(weights, len(data), replacement=True, generator=generator)
        loader = DataLoader(Subset(data, chosen[rank::world].tolist()), batch_size=batch // world)
        for inputs, targets in loader:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(inputs), targets).backward()
            optimizer.step()
        weights = losses_of(network, data)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
