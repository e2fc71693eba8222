"""Accumulate the gradients of four micro-batches, with a gradient scaler; samples are drawn by hand."""

import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

SHARED = Path(os.environ["COMPOSESIM_SHARED"])
PARTS, STEPS, EVERY = 4, 16, 16


def main():
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank = dist.get_rank()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu", int(os.environ["LOCAL_RANK"]))
    torch.manual_seed(0)
    data = torch.randn(4096, 8)
    model = DistributedDataParallel(nn.Linear(8, 1).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler(device.type, init_scale=1024.0, growth_interval=3)
    part = 0
    if (SHARED / "state.pt").exists():
        state = torch.load(SHARED / "state.pt", map_location=device)
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        scaler.load_state_dict(state["scaler"])
        part = state["part"]
    while part < STEPS * PARTS:
        begin = (part * dist.get_world_size() + rank) * 8
        inputs = data[begin : begin + 8].to(device)
        loss = (model(inputs) - inputs.sum(dim=1, keepdim=True)).square().mean() / PARTS
        scaler.scale(loss).backward()
        part += 1
        if part % PARTS == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        if part % EVERY == 0 and rank == 0:
            state = {
                "model": model.module.state_dict(),
                "optimizer": optimizer.state_dict(),
                "scaler": scaler.state_dict(),
                "part": part,
            }
            torch.save(state, SHARED / "state.new")
            (SHARED / "state.new").replace(SHARED / "state.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
