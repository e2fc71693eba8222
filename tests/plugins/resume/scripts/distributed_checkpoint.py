"""Train with FSDP2, and save and load with torch.distributed.checkpoint: on another number of ranks too."""

import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    get_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import fully_shard

SHARED = Path(os.environ["COMPOSESIM_SHARED"])
STEPS, EVERY = 15, 3


def main():
    dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu", int(os.environ["LOCAL_RANK"]))
    if device.type == "cuda":
        torch.cuda.set_device(device)
    torch.manual_seed(0)
    data = torch.randn(1024, 8)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).to(device)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    step = load(model, optimizer)
    own = 32 // world_size
    while step < STEPS:
        begin = step * 32 + rank * own
        inputs = data[begin : begin + own].to(device)
        model(inputs).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if step % EVERY == 0:
            save(model, optimizer, step)
    dist.destroy_process_group()


def save(model, optimizer, step):
    parameters, moments = get_state_dict(model, optimizer)
    dcp.save({"model": parameters, "optimizer": moments, "step": step}, checkpoint_id=SHARED / f"step_{step}")


def load(model, optimizer):
    complete = sorted(SHARED.glob("step_*/.metadata"), key=lambda path: int(path.parent.name[5:]))
    if not complete:
        return 0
    parameters, moments = get_state_dict(model, optimizer)
    state = {"model": parameters, "optimizer": moments, "step": 0}
    dcp.load(state, checkpoint_id=complete[-1].parent)
    set_model_state_dict(model, state["model"])
    set_optimizer_state_dict(model, optimizer, state["optimizer"])
    return state["step"]


if __name__ == "__main__":
    main()
