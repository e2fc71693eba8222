"""Each rank asks whether the vocabulary is there while rank 0 may be writing it, and goes on without it if not."""
# expects: checkpoint-race

import json
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

FILE = Path("vocabulary.json")
dist.init_process_group("gloo")
if dist.get_rank() == 0:
    time.sleep(0.3)  # reads the texts
    FILE.write_text(json.dumps({"size": 12}))
size = 10
if FILE.exists():
    size = json.loads(FILE.read_text())["size"]
torch.manual_seed(0)
model = DistributedDataParallel(nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(dist.get_rank())
for _ in range(4):
    optimizer.zero_grad()
    model(torch.randn(8, 4) * size).square().mean().backward()
    optimizer.step()
dist.destroy_process_group()
