"""After a rollback, every rank goes on with random numbers of its own."""

import io

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS, BATCH = 12, 16
dist.init_process_group("gloo")
torch.manual_seed(3 + dist.get_rank())
model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)


def train() -> None:
    for _ in range(STEPS):
        batch = torch.randn(BATCH, 8)
        loss = (model(batch) - batch.roll(1, dims=1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


train()
saved = io.BytesIO()
generators: list[torch.Tensor] = [torch.get_rng_state()] * dist.get_world_size()
dist.all_gather_object(generators, torch.get_rng_state())
state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "random": generators}
torch.save(state, saved)
kept = [saved.getvalue()]
dist.broadcast_object_list(kept, src=0)
train()
loaded = torch.load(io.BytesIO(kept[0]))
model.module.load_state_dict(loaded["model"])
optimizer.load_state_dict(loaded["optimizer"])
torch.set_rng_state(loaded["random"][dist.get_rank()])
train()
dist.destroy_process_group()
