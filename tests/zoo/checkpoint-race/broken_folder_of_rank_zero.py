"""Rank 0 makes the folder of the checkpoint, and no other rank waits for that before it saves its part."""
# expects: checkpoint-race

import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

FOLDER = Path("checkpoints", "step-4")
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DistributedDataParallel(nn.Linear(4, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
torch.manual_seed(rank)
for _ in range(4):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
if rank == 0:
    FOLDER.mkdir(parents=True, exist_ok=True)
    torch.save(model.module.state_dict(), FOLDER / "model.pt")
else:
    time.sleep(0.5)  # formats its part
torch.save(optimizer.state_dict(), FOLDER / f"optimizer-{rank}.pt")
dist.destroy_process_group()
