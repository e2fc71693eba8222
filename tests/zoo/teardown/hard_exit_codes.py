"""Unusual but correct endings: sys.exit(0) while a thread runs, exit handlers that print, no destroy_process_group."""

import atexit
import sys
import threading

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DDP(torch.nn.Linear(5, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
generator = torch.Generator().manual_seed(dist.get_rank())
for _ in range(6):
    optimizer.zero_grad()
    model(torch.randn(8, 5, generator=generator)).abs().mean().backward()
    optimizer.step()
atexit.register(print, "good bye")
background = threading.Thread(target=torch.randn(64, 64).sum)
background.start()
background.join()
dist.barrier()
sys.exit(0)
