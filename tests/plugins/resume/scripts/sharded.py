"""Train with FSDP2, and save with torch.distributed.checkpoint."""

import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
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
    while step < STEPS:
        begin = (step * world_size + rank) * 8
        inputs = data[begin : begin + 8].to(device)
        model(inputs).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if step % EVERY == 0:
            save(model, optimizer, step)
    dist.destroy_process_group()


def save(model, optimizer, step):
    weights, moments = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": moments, "step": step}, checkpoint_id=SHARED / f"step_{step}")


def load(model, optimizer):
    found = sorted(SHARED.glob("step_*/.metadata"), key=lambda path: int(path.parent.name[5:]))
    if not found:
        return 0
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments, "step": 0}
    dcp.load(state, checkpoint_id=found[-1].parent)
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
    return state["step"]


if __name__ == "__main__":
    main()
