"""A rank that sees a damaged batch leaves it out, and the others wait for its gradients."""

# expects: uneven-inputs
# also: hang, collective-mismatch, teardown

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Pictures(Dataset):
    def __init__(self, count: int) -> None:
        self.values = torch.rand(count, 1, 6, 6, generator=torch.Generator().manual_seed(5))
        self.values[41] = float("inf")

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.values[index], index % 3


def train(model: nn.Module, loader: DataLoader, optimizer: torch.optim.Optimizer) -> int:
    skipped = 0
    for pictures, kinds in loader:
        loss = nn.functional.cross_entropy(model(pictures), kinds)
        if loss.isnan() or loss.isinf():
            skipped += 1
            continue
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return skipped


dist.init_process_group("gloo")
torch.manual_seed(0)
data = Pictures(192)
sampler = DistributedSampler(data)
model = DistributedDataParallel(nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(64, 3)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(2):
    sampler.set_epoch(epoch)
    print("skipped", train(model, DataLoader(data, batch_size=6, sampler=sampler), optimizer))
dist.destroy_process_group()
