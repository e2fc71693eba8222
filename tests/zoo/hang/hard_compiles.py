"""Rank 1 waits for a compiler in another process, and the others wait for rank 1: slow, but the compiler is working."""

# options: --hang-timeout 4s

import subprocess
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

COMPILER = "import time\nuntil = time.monotonic() + 9\nwhile time.monotonic() < until: sum(range(1000))"


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(6, 6)
        self.is_built = False

    def build(self) -> None:
        subprocess.run([sys.executable, "-c", COMPILER], check=True)
        self.is_built = True

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.layer(inputs)
        return result


dist.init_process_group("gloo")
rank = dist.get_rank()
generator = torch.Generator().manual_seed(rank)
module = Model()
model = DistributedDataParallel(module)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(5):
    if step == 2 and rank == 1 and not module.is_built:
        module.build()
    loss = model(torch.randn(4, 6, generator=generator)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
dist.destroy_process_group()
