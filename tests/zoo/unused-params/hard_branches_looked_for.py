"""Each step takes one of two branches, and DDP runs with find_unused_parameters=True."""

import torch
import torch.distributed as dist
from torch import nn, optim
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Branches(nn.Module):
    def __init__(self, ways: int = 2) -> None:
        super().__init__()
        self.ways = nn.ModuleList(nn.Sequential(nn.Linear(4, 8), nn.Tanh()) for _ in range(ways))
        self.out = nn.Linear(8, 1)

    def forward(self, inputs: torch.Tensor, way: int) -> torch.Tensor:
        return self.out(self.ways[way](inputs))


class Loop:
    def __init__(self, **options: bool) -> None:
        self.model = DDP(Branches(), **options)
        self.optimizer = optim.RMSprop(self.model.parameters(), lr=1e-3)
        self.step = 0

    def __call__(self, loader: DataLoader) -> torch.Tensor:
        for inputs, targets in loader:
            self.optimizer.zero_grad()
            loss = (self.model(inputs, way=self.step % 2) - targets).abs().mean()
            loss.backward()
            self.optimizer.step()
            self.step += 1
        return loss.detach()


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(7)
    inputs = torch.rand(256, 4)
    data = TensorDataset(inputs, inputs.prod(dim=1, keepdim=True))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    loop = Loop(find_unused_parameters=True)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        loss = loop(loader)
        dist.all_reduce(loss)
        if dist.get_rank() == 0:
            print(f"loss {loss.item() / dist.get_world_size():.4f}")
    del loop
    dist.destroy_process_group()


main()
