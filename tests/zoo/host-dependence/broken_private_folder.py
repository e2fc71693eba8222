"""Rank 0 prepares the data in /tmp, and every rank reads it there: on the other nodes the file does not exist."""

# expects: host-dependence

import os
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def prepare(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(160, 6, generator=generator)
    torch.save((features, features.cumsum(1)), folder / "train.pt")


def main() -> None:
    dist.init_process_group("gloo")
    folder = Path(tempfile.gettempdir()) / f"composesim-zoo-{os.environ['MASTER_PORT']}"
    if dist.get_rank() == 0:
        prepare(folder)
    dist.barrier()
    features, targets = torch.load(folder / "train.pt", weights_only=True)
    data = TensorDataset(features, targets)
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(6, 6))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    sampler = DistributedSampler(data)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for batch, target in DataLoader(data, batch_size=8, sampler=sampler):
            optimizer.zero_grad()
            (model(batch) - target).abs().mean().backward()
            optimizer.step()
    del model
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
