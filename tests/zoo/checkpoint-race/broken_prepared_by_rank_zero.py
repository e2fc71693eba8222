"""Rank 0 prepares a file of data, and the others read it before it is there."""
# expects: checkpoint-race

from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def prepare(path: Path) -> None:
    torch.manual_seed(0)
    raw = torch.randn(1200, 1200)
    for _ in range(40):  # takes a second or more
        raw = torch.tanh(raw @ raw / len(raw))
    torch.save(raw[:96, :5].clone(), path)


def main() -> None:
    dist.init_process_group("gloo")
    path = Path("features.pt")
    if dist.get_rank() == 0 and not path.exists():
        prepare(path)
    features = torch.load(path, weights_only=True)
    data = TensorDataset(features, features.sum(1, keepdim=True))
    sampler = DistributedSampler(data)
    model = DistributedDataParallel(torch.nn.Linear(5, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for batch, target in DataLoader(data, batch_size=8, sampler=sampler):
            optimizer.zero_grad()
            (model(batch) - target).square().mean().backward()
            optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
