"""Ranks draw the same numbers where they must decide alike, and different ones for augmentation."""

import random

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset, default_collate

decisions = random.Random(99)  # the same on all ranks


def resized(samples: list[tuple[Tensor, ...]]) -> list[Tensor]:
    """Resize a batch to one length, the same on every rank, so that no rank waits for another."""
    length = random.choice((6, 8, 10))
    x, y = default_collate(samples)
    return [nn.functional.interpolate(x[:, None], size=length, mode="linear").squeeze(1), y]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Conv1d(1, 4, 3), nn.Conv1d(4, 4, 3, padding=1), nn.Linear(4, 1)

    def forward(self, x: Tensor, *, skip: bool) -> Tensor:
        hidden = self.first(x[:, None]).relu()
        hidden = hidden + (0.0 if skip else 1.0) * self.second(hidden).relu()
        return self.last(hidden.mean(-1))


dist.init_process_group("gloo")
torch.manual_seed(7)
random.seed(7)
model = DDP(Net())
data = TensorDataset(torch.randn(96, 8), torch.randn(96, 1))
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=6, sampler=sampler, collate_fn=resized)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
jitter = torch.Generator().manual_seed(1000 + dist.get_rank())
for epoch in range(2):
    sampler.set_epoch(epoch)
    for x, y in loader:
        x = x + 0.05 * torch.randn(x.shape, generator=jitter)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x, skip=decisions.random() < 0.3), y).backward()
        optimizer.step()
dist.destroy_process_group()
