"""init_method names a rendezvous address on the loopback interface."""

# expects: host-dependence
# also: hang

import os

import torch
import torch.distributed as dist
from torch import nn

RANK, WORLD_SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
PORT = 20000 + int(os.environ["MASTER_PORT"]) % 9000

dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{PORT}", rank=RANK, world_size=WORLD_SIZE)
torch.manual_seed(1)
net = nn.parallel.DistributedDataParallel(nn.GRUCell(3, 5))
optimizer = torch.optim.SGD(net.parameters(), lr=0.02)
draw = torch.Generator().manual_seed(RANK)
for _ in range(6):
    state = net(torch.randn(4, 3, generator=draw), torch.zeros(4, 5))
    optimizer.zero_grad()
    state.sum().backward()
    optimizer.step()
dist.destroy_process_group()
