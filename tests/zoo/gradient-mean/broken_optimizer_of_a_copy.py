"""The optimizer was made before the model was copied: it holds the parameters of the original, and the model never moves."""
# expects: gradient-mean

import copy

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
template = torch.nn.Linear(6, 1)
optimizer = torch.optim.SGD(template.parameters(), lr=0.1)
model = DistributedDataParallel(copy.deepcopy(template))
own = torch.Generator().manual_seed(dist.get_rank())
for _ in range(8):
    x = torch.randn(16, 6, generator=own)
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(x), x[:, :1]).backward()
    optimizer.step()
dist.destroy_process_group()
