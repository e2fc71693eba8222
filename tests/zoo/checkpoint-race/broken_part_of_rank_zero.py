"""FSDP2; the weights are saved without DTensors for inference, but rank 0 writes its own part only."""
# expects: checkpoint-race

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor


def plain(state):
    return {name: each.to_local() if isinstance(each, DTensor) else each for name, each in state.items()}


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
weights = plain(model.state_dict())
if dist.get_rank() == 0:
    torch.save({"weights": weights}, "model.pt")
dist.barrier()
dist.destroy_process_group()
