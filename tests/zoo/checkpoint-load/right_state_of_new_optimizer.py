"""A sharded checkpoint is loaded into the prepared state of a new optimizer."""

import os
import shutil
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
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
saved = get_state_dict(model, optimizer)
dcp.save({"model": saved[0], "optimizer": saved[1]}, checkpoint_id=FOLDER)
dist.barrier()
model, optimizer = begin()
prepared = get_state_dict(model, optimizer)
state = {"model": prepared[0], "optimizer": prepared[1]}
dcp.load(state, checkpoint_id=FOLDER)
set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
train(model, optimizer, range(10, 20))
dist.barrier()
if dist.get_rank() == 0:
    shutil.rmtree(FOLDER)
dist.destroy_process_group()
