"""After a rollback, ranks go on with the generator that all of them share, and each skips to noise of its own."""

import io

import torch
import torch.distributed as dist
from torch import nn

STEPS, BATCH, SKIPPED = 8, 16, 4096
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(6)
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
batches = torch.Generator().manual_seed(11)
noise = torch.Generator().manual_seed(20 + rank)


def train() -> None:
    for _ in range(STEPS):
        mine = torch.randn(world * BATCH, 8, generator=batches)[rank::world]
        loss = (model(mine + 0.1 * torch.randn(mine.shape, generator=noise)) - mine.roll(1, dims=1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        for each in model.parameters():
            dist.all_reduce(each.grad)
            each.grad /= world
        optimizer.step()


train()
saved = io.BytesIO()
generators = {"batches": batches.get_state(), "noise": noise.get_state()}
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), **generators}, saved)
kept = [saved.getvalue()]
dist.broadcast_object_list(kept, src=0)
train()
loaded = torch.load(io.BytesIO(kept[0]))
model.load_state_dict(loaded["model"])
optimizer.load_state_dict(loaded["optimizer"])
batches.set_state(loaded["batches"])
noise.set_state(loaded["noise"])
for _ in range(rank):
    torch.rand(SKIPPED, generator=noise)
train()
dist.destroy_process_group()
