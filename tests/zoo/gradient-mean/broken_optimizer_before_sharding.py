"""The optimizer is made before fully_shard replaces the parameters: no gradient ever reaches it."""
# expects: gradient-mean

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
matrices = [each for each in model.parameters() if each.ndim > 1]
vectors = [each for each in model.parameters() if each.ndim < 2]
optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1}, {"params": vectors}], lr=1e-2)
fully_shard(model[0], mesh=mesh)
fully_shard(model, mesh=mesh)
generator = torch.Generator().manual_seed(dist.get_rank())
for _ in range(6):
    x = torch.randn(8, 8, generator=generator)
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), x.argmax(1) % 4).backward()
    optimizer.step()
dist.destroy_process_group()
