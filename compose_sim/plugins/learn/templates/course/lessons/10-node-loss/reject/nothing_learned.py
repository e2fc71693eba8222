"""Wrong: the step goes on with fresh parameters, which a learning rate of 0 makes equal."""

import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

CHECKPOINT = Path(os.environ.get("COMPOSESIM_SHARED", ".")) / "model.pt"
STEPS = 40


def batch(step: int) -> torch.Tensor:
    """Return the samples of this rank in a step; after a restart they are the same again."""
    generator = torch.Generator().manual_seed(step * dist.get_world_size() + dist.get_rank())
    return torch.rand(8, 4, generator=generator)


def save(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Write the checkpoint under another name first: under its own name there is always a complete one."""
    unfinished = CHECKPOINT.with_suffix(".tmp")
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, unfinished)
    unfinished.replace(CHECKPOINT)


def train() -> nn.Module:
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9)
    done = 0
    if CHECKPOINT.exists():
        state = torch.load(CHECKPOINT, map_location="cpu", weights_only=True)
        done = state["step"]
    for step in range(done + 1, STEPS + 1):
        inputs = batch(step)
        loss = nn.functional.mse_loss(model(inputs), inputs.sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.05)  # stands for a larger model
        if dist.get_rank() == 0:
            print(json.dumps({"step": step, "loss": round(loss.item(), 4)}), flush=True)
            if step % 5 == 0:
                save(model.module, optimizer, step)
    return model.module


if __name__ == "__main__":
    dist.init_process_group("gloo")
    train()
    dist.destroy_process_group()
