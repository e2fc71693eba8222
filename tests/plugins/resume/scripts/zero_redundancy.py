"""Shard the state of the optimizer over the ranks, and bring it together on rank 0 to save it."""

import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

PATH = Path(os.environ["COMPOSESIM_SHARED"], "state.pt")


def main():
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    data = torch.randn(1024, 8)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)))
    optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.Adam, lr=0.01)
    step = 0
    if PATH.exists():
        state = torch.load(PATH)
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
    while step < 16:
        begin = (step * world_size + rank) * 8
        inputs = data[begin : begin + 8]
        (model(inputs) - inputs.sum(dim=1, keepdim=True)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if step % 4 == 0:
            optimizer.consolidate_state_dict(to=0)
            if rank == 0:
                state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
                torch.save(state, PATH.with_suffix(".new"))
                PATH.with_suffix(".new").replace(PATH)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
