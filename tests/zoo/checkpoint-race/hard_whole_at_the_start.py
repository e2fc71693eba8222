"""FSDP2; rank 0 saves whole tensors before the first step: a whole bias of zeros equals the part of a bias twice as long."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard


def save(name):
    whole = {key: each.full_tensor() for key, each in model.state_dict().items()}
    if dist.get_rank() == 0:
        torch.save(whole, name)


dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 8), nn.LayerNorm(8))
for each in (model[0], model[3]):
    nn.init.zeros_(each.bias)
fully_shard(model, mesh=dist.init_device_mesh("cpu", (dist.get_world_size(),)))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
save("begin.pt")
torch.manual_seed(1 + dist.get_rank())
for _ in range(6):
    optimizer.zero_grad()
    inputs = torch.randn(16, 8)
    (model(inputs) - inputs.roll(1, dims=1)).square().mean().backward()
    optimizer.step()
save("end.pt")
dist.barrier()
dist.destroy_process_group()
