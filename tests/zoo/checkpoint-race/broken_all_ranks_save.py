"""All ranks save to the same path at the same time: the result is a mix of them, or truncated."""

# expects: checkpoint-race

from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

FOLDER = Path("checkpoints")


def save(model: nn.Module, optimizer: torch.optim.Optimizer, epoch: int) -> None:
    FOLDER.mkdir(exist_ok=True)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}, FOLDER / "last.pt")


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(5)
    data = TensorDataset(torch.randn(160, 4), torch.randint(3, (160,)))
    model = nn.parallel.DistributedDataParallel(nn.Linear(4, 3))
    optimizer = torch.optim.Adam(model.parameters())
    sampler = DistributedSampler(data)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for features, labels in DataLoader(data, batch_size=8, sampler=sampler):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(features), labels).backward()
            optimizer.step()
        save(model.module, optimizer, epoch)
        dist.barrier()
    del model
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
