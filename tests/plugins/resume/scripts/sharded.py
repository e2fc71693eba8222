"""Train with FSDP2, and let every rank save its shards."""

import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
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
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
    torch.save(state, SHARED / f"step_{step}-{dist.get_rank()}.pt")
    dist.barrier()


def load(model, optimizer):
    steps = sorted({path.stem.partition("-")[0][5:] for path in SHARED.glob("step_*-*.pt")}, key=int)
    if not steps:
        return 0
    state = torch.load(SHARED / f"step_{steps[-1]}-{dist.get_rank()}.pt", weights_only=False)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["step"]


if __name__ == "__main__":
    main()
