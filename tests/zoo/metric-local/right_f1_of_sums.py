"""Hits, false alarms and misses are added up over the ranks, and the F1 score is computed from the sums."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset

THRESHOLD = 1.6  # few samples are positive


def f1(hits: int, false_alarms: int, misses: int) -> float:
    return 2 * hits / max(1, 2 * hits + false_alarms + misses)


@torch.no_grad()
def evaluate(model: nn.Module, loader: DataLoader) -> float:
    hits = false_alarms = misses = 0
    for x, y in loader:
        found, positive = model(x).squeeze(1) > 0, y > 0
        hits += int((found & positive).sum())
        false_alarms += int((found & ~positive).sum())
        misses += int((~found & positive).sum())
    counts = torch.tensor([hits, false_alarms, misses])
    dist.all_reduce(counts)
    return f1(*counts.tolist())


dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
x = torch.randn(256, 6, generator=torch.Generator().manual_seed(1))
y = (x.sum(1) > THRESHOLD).float()
train, test = TensorDataset(x[:128], y[:128]), TensorDataset(x[128:], y[128:])
sampler = DistributedSampler(train)
model = DistributedDataParallel(nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
for epoch in range(4):
    sampler.set_epoch(epoch)
    for batch, labels in DataLoader(train, batch_size=32 // world, sampler=sampler):
        loss = nn.functional.binary_cross_entropy_with_logits(model(batch).squeeze(1), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    score = evaluate(model.module, DataLoader(Subset(test, range(rank, 128, world)), batch_size=16))
    if rank == 0:
        print(f"epoch {epoch}: val f1 {score:.4f}")
dist.destroy_process_group()
