"""Right: learning rate, samples and random numbers are computed from the step, so that there is less state."""

import json
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

CHECKPOINT = Path(os.environ.get("COMPOSESIM_SHARED", ".")) / "model.pt"
EPOCHS, SAVE_EVERY = 3, 5
INPUTS = torch.randn(128, 8, generator=torch.Generator().manual_seed(0))
DATA = TensorDataset(INPUTS, INPUTS.sum(1, keepdim=True))


def warm_up(step: int) -> float:
    return min(1.0, (step + 1) / 16)


def train() -> nn.Module:
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Dropout(0.2), nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    sampler = DistributedSampler(DATA)
    length = len(sampler) // 8
    step = 0
    if CHECKPOINT.exists():
        state = torch.load(CHECKPOINT, map_location="cpu", weights_only=True)
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
    for epoch in range(step // length, EPOCHS):
        sampler.set_epoch(epoch)
        for inputs, targets in DataLoader(DATA, batch_size=8, sampler=[*sampler][step % length * 8 :]):
            torch.manual_seed(1 + step * dist.get_world_size() + dist.get_rank())  # for dropout
            for group in optimizer.param_groups:
                group["lr"] = 0.05 * warm_up(step)
            loss = nn.functional.mse_loss(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if dist.get_rank() == 0:
                print(json.dumps({"step": step, "loss": round(loss.item(), 4)}), flush=True)
            if step % SAVE_EVERY == 0 and dist.get_rank() == 0:
                state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
                unfinished = CHECKPOINT.with_suffix(".tmp")
                torch.save(state, unfinished)
                unfinished.replace(CHECKPOINT)
    return model.module


if __name__ == "__main__":
    dist.init_process_group("gloo")
    train()
    dist.destroy_process_group()
