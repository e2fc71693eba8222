"""Train with DDP and a StatefulDataLoader, save in the middle of an epoch, and let each rank restore its own loader."""

import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Subset, TensorDataset
from torchdata.stateful_dataloader import StatefulDataLoader

EPOCHS, EVERY = 3, 5
SHARED = Path(os.environ["COMPOSESIM_SHARED"])
MODEL = SHARED / "model.pt"


def main():
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    generator = torch.Generator().manual_seed(7)
    data = TensorDataset(torch.randn(64, 8, generator=generator), torch.randn(64, 1, generator=generator))
    own = Subset(data, range(rank, 64, world_size))
    loader = StatefulDataLoader(own, batch_size=4, shuffle=True)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    step = 0
    if MODEL.exists():
        state = torch.load(MODEL)
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
        loader.load_state_dict(torch.load(SHARED / f"loader-{rank}-{step}.pt", weights_only=False))
    for _ in range(step // len(loader), EPOCHS):
        for inputs, targets in loader:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(inputs), targets).backward()
            optimizer.step()
            step += 1
            if step % EVERY == 0:
                save(model, optimizer, loader, step, rank)
    dist.destroy_process_group()


def save(model, optimizer, loader, step, rank):
    torch.save(loader.state_dict(), SHARED / f"loader-{rank}-{step}.pt")
    dist.barrier()
    if rank == 0:
        state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        torch.save(state, MODEL.with_suffix(".new"))
        MODEL.with_suffix(".new").replace(MODEL)


if __name__ == "__main__":
    main()
