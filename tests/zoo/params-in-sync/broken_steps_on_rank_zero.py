"""Only rank 0 steps, as if it sent the weights to the others; DistributedDataParallel sends gradients, never weights."""
# expects: params-in-sync
# also: matches-single

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(6, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
own = torch.Generator().manual_seed(rank)
for _ in range(10):
    x = torch.randn(16, 6, generator=own)
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(x), x[:, :1]).backward()
    if rank == 0:
        optimizer.step()
dist.destroy_process_group()
