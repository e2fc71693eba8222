"""A C call holds the interpreter's lock and never returns: no thread of rank 1 can run."""

# expects: hang
# options: --hang-timeout 4s

import ctypes

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

native = ctypes.PyDLL(None)  # PyDLL, unlike CDLL, holds the lock during the call


class Augment(torch.nn.Module):
    calls = 0

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        Augment.calls += 1
        if Augment.calls == 4 and dist.get_rank() == 1:
            native.sleep(100_000)
        return inputs * 0.5


dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
augment = Augment()
model = DistributedDataParallel(torch.nn.Linear(5, 2))
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
for _ in range(8):
    loss = model(augment(torch.rand(4, 5))).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
dist.destroy_process_group()
