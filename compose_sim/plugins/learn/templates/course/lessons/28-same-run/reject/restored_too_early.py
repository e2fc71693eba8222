"""Wrong: the new iterator draws from the random state that was just restored."""

import json
import os
from itertools import islice
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

CHECKPOINT = Path(os.environ.get("COMPOSESIM_SHARED", ".")) / "model.pt"
EPOCHS, SAVE_EVERY = 3, 5
INPUTS = torch.randn(128, 8, generator=torch.Generator().manual_seed(0))
DATA = TensorDataset(INPUTS, INPUTS.sum(1, keepdim=True))


def warm_up(step: int) -> float:
    return min(1.0, (step + 1) / 16)


def save(model: nn.Module, optimizer: torch.optim.Optimizer, scheduler: LambdaLR, step: int) -> None:
    """Write the checkpoint, with the random states of all ranks, which all call this."""
    random_states = [None] * dist.get_world_size()
    dist.all_gather_object(random_states, torch.get_rng_state())
    if dist.get_rank() == 0:
        state = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "scheduler": scheduler.state_dict(),
            "random": random_states,
            "step": step,
        }
        unfinished = CHECKPOINT.with_suffix(".tmp")
        torch.save(state, unfinished)
        unfinished.replace(CHECKPOINT)


def train() -> nn.Module:
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Dropout(0.2), nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)))
    torch.manual_seed(1 + dist.get_rank())  # each rank has dropout masks of its own
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scheduler = LambdaLR(optimizer, warm_up)
    sampler = DistributedSampler(DATA)
    loader = DataLoader(DATA, batch_size=8, sampler=sampler)
    step = 0
    if CHECKPOINT.exists():
        state = torch.load(CHECKPOINT, map_location="cpu", weights_only=True)
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        scheduler.load_state_dict(state["scheduler"])
        torch.set_rng_state(state["random"][dist.get_rank()])
        step = state["step"]
    for epoch in range(step // len(loader), EPOCHS):
        sampler.set_epoch(epoch)
        for inputs, targets in islice(loader, step % len(loader), None):
            loss = nn.functional.mse_loss(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            step += 1
            if dist.get_rank() == 0:
                print(json.dumps({"step": step, "loss": round(loss.item(), 4)}), flush=True)
            if step % SAVE_EVERY == 0:
                save(model.module, optimizer, scheduler, step)
    return model.module


if __name__ == "__main__":
    dist.init_process_group("gloo")
    train()
    dist.destroy_process_group()
