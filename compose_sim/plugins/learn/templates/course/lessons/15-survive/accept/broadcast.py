"""Right: rank 0 reads the newest of two files that is whole, and broadcasts it."""

import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

FOLDER = Path(os.environ.get("COMPOSESIM_SHARED", "."))
STEPS, SAVE_EVERY = 60, 3


def batch(step: int) -> torch.Tensor:
    """Return the samples of this rank in a step; after a restart they are the same again."""
    generator = torch.Generator().manual_seed(step * dist.get_world_size() + dist.get_rank())
    return torch.rand(64, 16, generator=generator)


def newest() -> dict | None:
    """Return the state of the latest step that was saved as a whole, on all ranks."""
    found = []
    for path in FOLDER.glob("model-*.pt") if dist.get_rank() == 0 else ():
        try:
            found.append(torch.load(path, weights_only=True))
        except (RuntimeError, EOFError):
            print(f"{path} is not whole", flush=True)
    state = [max(found, key=lambda each: each["step"], default=None)]
    dist.broadcast_object_list(state, src=0)
    return state[0]


def train() -> nn.Module:
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    done = 0
    if state := newest():
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
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
            if step % SAVE_EVERY == 0:
                state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
                torch.save(state, FOLDER / f"model-{step // SAVE_EVERY % 2}.pt")
    return model.module


if __name__ == "__main__":
    dist.init_process_group("gloo")
    train()
    dist.destroy_process_group()
