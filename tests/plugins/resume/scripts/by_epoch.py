"""Train with DDP, save at the end of each epoch; the order of the samples comes from torch's random numbers."""

import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Subset, TensorDataset

SHARED = Path(os.environ["COMPOSESIM_SHARED"])


def main():
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    generator = torch.Generator().manual_seed(7)
    data = TensorDataset(torch.randn(64, 8, generator=generator), torch.randn(64, 1, generator=generator))
    own = Subset(data, range(rank, 64, world_size))
    loader = DataLoader(own, batch_size=4, shuffle=True)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    first = 0
    if (SHARED / "latest.txt").exists():
        path = SHARED / (SHARED / "latest.txt").read_text()
        state = torch.load(path / "state.pt")
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["epoch"] + 1
        torch.set_rng_state(torch.load(path / f"random-{rank}.pt"))
    for epoch in range(first, 4):
        for inputs, targets in loader:
            loss = nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        path = SHARED / f"epoch-{epoch}"
        path.mkdir(exist_ok=True)
        torch.save(torch.get_rng_state(), path / f"random-{rank}.pt")
        if rank == 0:
            torch.save(
                {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch},
                path / "state.pt",
            )
        dist.barrier()
        if rank == 0:
            (SHARED / "latest.txt").write_text(path.name)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
