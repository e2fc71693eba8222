"""Train on two nodes, save a checkpoint to the folder that they share, and load it again on every rank."""

import json
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

CHECKPOINT = Path(os.environ.get("COMPOSESIM_SHARED", ".")) / "model.pt"


def train() -> None:
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(dist.get_rank())
    model = DistributedDataParallel(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(8):
        inputs = torch.rand(8, 4, generator=generator)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), inputs.sum(1, keepdim=True)).backward()
        optimizer.step()

    if local_rank == 0:
        torch.save({"model": model.module.state_dict(), "step": 8}, CHECKPOINT)
    dist.barrier()  # nobody reads before the file is complete

    state = torch.load(CHECKPOINT, map_location="cpu", weights_only=True)
    model.module.load_state_dict(state["model"])
    print(json.dumps({"step": 8, "loaded_step": state["step"]}), flush=True)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    train()
    dist.destroy_process_group()
