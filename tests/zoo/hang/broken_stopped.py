"""Rank 1 is stopped by a signal, as by a forgotten debugger: the process exists, but does nothing."""

# expects: hang
# options: --hang-timeout 4s

import os
import signal

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group(backend="gloo")
rank = int(os.environ["RANK"])
generator = torch.Generator().manual_seed(rank)
net = DistributedDataParallel(torch.nn.Linear(10, 10))
sgd = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
for step in range(1, 9):
    if rank == 1 and step == 5:
        os.kill(os.getpid(), signal.SIGSTOP)
    out = net(torch.randn(3, 10, generator=generator))
    sgd.zero_grad()
    out.norm().backward()
    sgd.step()
dist.destroy_process_group()
