"""A two-dimensional mesh of replicas and shards, with a distributed checkpoint that is saved and loaded."""

import os
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("cuda:nccl,cpu:gloo")
mesh = init_device_mesh("cuda", (1, dist.get_world_size()), mesh_dim_names=("replicate", "shard"))
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4)).cuda()
fully_shard(model, mesh=mesh)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
torch.manual_seed(dist.get_rank())


def train(steps):
    for _ in range(steps):
        loss = nn.functional.mse_loss(model(torch.randn(8, 16).cuda()), torch.zeros(8, 4).cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0:
            print(f"loss {loss.item():.6f}", flush=True)


train(2)
folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
dist.broadcast_object_list(folder, src=0)
weights, moments = get_state_dict(model, optimizer)
state = {"model": weights, "optimizer": moments}
dcp.save(state, checkpoint_id=folder[0])
train(1)
weights, moments = get_state_dict(model, optimizer)
state = {"model": weights, "optimizer": moments}
dcp.load(state, checkpoint_id=folder[0])
set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
train(2)
dist.destroy_process_group()
