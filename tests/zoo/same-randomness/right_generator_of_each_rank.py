"""A dropout written by hand draws from a generator that each rank seeds differently, and skipped layers from one that all share."""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Dropout(nn.Module):
    def __init__(self, share: float, seed: int) -> None:
        super().__init__()
        self.share, self.generator = share, torch.Generator().manual_seed(seed)

    def forward(self, x: Tensor) -> Tensor:
        kept = torch.rand(x.shape, generator=self.generator) >= self.share
        return x * kept / (1 - self.share)


class Skipping(nn.Module):
    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        self.layers, self.generator = nn.ModuleList(layers), torch.Generator().manual_seed(3)

    def forward(self, x: Tensor) -> Tensor:
        for layer, number in zip(self.layers, torch.rand(len(self.layers), generator=self.generator), strict=True):
            x = x + float(number > 0.2) * layer(x)
        return x


dist.init_process_group("gloo")
torch.manual_seed(5)
blocks = [nn.Sequential(nn.Linear(12, 12), nn.Tanh()) for _ in range(9)]
network = nn.Sequential(Skipping(blocks), Dropout(0.2, dist.get_rank()), nn.Linear(12, 2))
model = DistributedDataParallel(network)
data = TensorDataset(torch.randn(128, 12), torch.randn(128, 2))
sampler = DistributedSampler(data)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for x, y in DataLoader(data, batch_size=8, sampler=sampler):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
dist.destroy_process_group()
