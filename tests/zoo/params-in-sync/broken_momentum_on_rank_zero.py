"""Rank 0 alone loads the checkpoint: the weights are sent to all ranks, the state of the optimizer is not."""

# expects: params-in-sync
# options: --nproc-per-node 1

from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

PATH = "last.ckpt"


def session(epochs, resume):
    torch.manual_seed(3 + dist.get_rank())
    net = nn.Sequential(nn.Linear(6, 18), nn.ReLU(), nn.Linear(18, 1))
    opt = torch.optim.Adam(net.parameters(), lr=1e-2)
    if resume and dist.get_rank() == 0:
        state = torch.load(PATH, map_location="cpu")
        net.load_state_dict(state["net"])
        opt.load_state_dict(state["opt"])
    ddp = DDP(net)
    for epoch in epochs:
        sampler.set_epoch(epoch)
        for x, y in DataLoader(data, 8, sampler=sampler):
            opt.zero_grad()
            nn.functional.mse_loss(ddp(x), y).backward()
            opt.step()
    if dist.get_rank() == 0:
        torch.save({"net": net.state_dict(), "opt": opt.state_dict()}, PATH)
    dist.barrier()


dist.init_process_group("gloo")
g = torch.Generator().manual_seed(0)
X = torch.randn(64, 6, generator=g)
data = TensorDataset(X, X.norm(dim=1, keepdim=True))
sampler = DistributedSampler(data)
session(range(0, 2), resume=False)
session(range(2, 4), resume=True)
dist.barrier()
if dist.get_rank() == 0:
    Path(PATH).unlink()
dist.destroy_process_group()
