"""A sharded checkpoint is loaded with the state dict of a new optimizer, which has no moments to fill."""

# expects: checkpoint-load

import os
import shutil
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.fsdp import fully_shard

FOLDER = Path(os.environ["COMPOSESIM_SHARED"], "sharded")


def begin() -> tuple[nn.Module, torch.optim.Adam]:
    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
    fully_shard(model)
    return model, torch.optim.Adam(model.parameters(), lr=1e-2)


def train(model: nn.Module, optimizer: torch.optim.Adam, steps: range) -> None:
    for step in steps:
        source = torch.Generator().manual_seed(100 * step + dist.get_rank())
        batch = torch.randn(16, 6, generator=source)
        loss = (model(batch).squeeze(1) - batch.sum(1).sin()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


dist.init_process_group("gloo")
model, optimizer = begin()
train(model, optimizer, range(10))
dcp.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, checkpoint_id=FOLDER)
dist.barrier()
model, optimizer = begin()
state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
dcp.load(state, checkpoint_id=FOLDER)
model.load_state_dict(state["model"])
optimizer.load_state_dict(state["optimizer"])
train(model, optimizer, range(10, 20))
dist.barrier()
if dist.get_rank() == 0:
    shutil.rmtree(FOLDER)
dist.destroy_process_group()
