"""Train a classifier on all ranks, and print its accuracy on 81 validation samples."""

import json

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def make(count: int, seed: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(count, 8, generator=generator)
    return TensorDataset(features, (features @ torch.linspace(-1, 1, 8) > 0).long())


@torch.no_grad()
def evaluate(model: nn.Module, valid: TensorDataset) -> tuple[float, int]:
    """Return the accuracy on all samples, and their number; called on every rank."""
    hits = total = 0
    for features, labels in DataLoader(valid, batch_size=10, sampler=DistributedSampler(valid, shuffle=False)):
        hits += (model(features).argmax(1) == labels).sum().item()
        total += len(labels)
    return hits / total, total


def train() -> None:
    torch.manual_seed(0)
    data, valid = make(160, seed=1), make(81, seed=2)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=10, sampler=sampler)
    model = DistributedDataParallel(nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for features, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(features), labels).backward()
            optimizer.step()
        accuracy, samples = evaluate(model.module, valid)
        if dist.get_rank() == 0:
            print(json.dumps({"step": epoch, "accuracy": round(accuracy, 3), "samples": samples}), flush=True)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    train()
    dist.destroy_process_group()
