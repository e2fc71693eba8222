"""Tensor parallelism over the ranks of a node, data parallelism over nodes."""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


class ToyModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.in_proj, self.relu, self.out_proj = nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 5)

    def forward(self, x):
        return self.out_proj(self.relu(self.in_proj(x)))


device_type = torch.accelerator.current_accelerator().type if hasattr(torch, "accelerator") else "cuda"
tp_mesh = init_device_mesh(device_type=device_type, mesh_shape=(int(os.environ["WORLD_SIZE"]),))
torch.manual_seed(0)
model = ToyModel().to(device_type)
model = parallelize_module(model, tp_mesh, {"in_proj": ColwiseParallel(), "out_proj": RowwiseParallel()})
optimizer = torch.optim.AdamW(model.parameters(), lr=0.25, foreach=True)
for i in range(4):
    torch.manual_seed(i)
    inp = torch.rand(20, 10, device=sys.argv[1] if len(sys.argv) > 1 else device_type).to(device_type)
    output = model(inp)
    loss = output.sum()
    loss.backward()
    optimizer.step()
    if dist.get_rank() == 0:
        print(f"iter {i} loss {loss.item():.6f} on {output.device}", flush=True)
dist.destroy_process_group()
