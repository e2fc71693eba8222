"""FSDP2; every rank writes its own part into a file of its own, to be put together later."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))
fully_shard(model, mesh=dist.init_device_mesh("cpu", (dist.get_world_size(),)))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
torch.manual_seed(1 + dist.get_rank())
for _ in range(6):
    optimizer.zero_grad()
    model(torch.randn(16, 8)).square().mean().backward()
    optimizer.step()
parts = {name: each.to_local().clone() for name, each in model.state_dict().items()}
torch.save(parts, f"model-{dist.get_rank()}-of-{dist.get_world_size()}.pt")
dist.destroy_process_group()
