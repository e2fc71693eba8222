"""Wrong: each rank keeps a file of its own elsewhere."""

import os
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

CHECKPOINT = Path(tempfile.gettempdir()) / f"model-{os.environ['RANK']}-{os.getpid()}.pt"


def train() -> tuple[DistributedDataParallel, torch.optim.Optimizer]:
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(dist.get_rank())
    model = DistributedDataParallel(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(8):
        inputs = torch.rand(8, 4, generator=generator)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), inputs.sum(1, keepdim=True)).backward()
        optimizer.step()
    return model, optimizer


def save(model: DistributedDataParallel, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Write the checkpoint; called on every rank."""
    if True:
        state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        torch.save(state, CHECKPOINT)
    dist.barrier()  # nobody reads before the file is complete


def load(model: DistributedDataParallel, optimizer: torch.optim.Optimizer) -> int:
    """Load the checkpoint on every rank, and return its step."""
    state = torch.load(CHECKPOINT, map_location="cpu", weights_only=True)
    model.module.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["step"]


if __name__ == "__main__":
    dist.init_process_group("gloo")
    save(*train(), step=8)
    dist.destroy_process_group()
