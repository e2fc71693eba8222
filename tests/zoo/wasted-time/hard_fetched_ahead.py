"""A loader that fetches one batch ahead, like Accelerate; DDP with accumulation and no_sync."""

import contextlib

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Images(Dataset):
    def __len__(self):
        return 192

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        x = torch.randn(3, 8, 8, generator=g)
        return x, int(x.mean() > 0)


class Ahead:
    def __init__(self, dl):
        self.dl = dl

    def __iter__(self):
        it = iter(self.dl)
        cur = next(it)
        while True:
            try:
                nxt = next(it)
            except StopIteration:
                yield cur, True
                return
            yield cur, False
            cur = nxt


dist.init_process_group("gloo")
torch.manual_seed(21)
net = DDP(nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Dropout(0.0), nn.Flatten(), nn.Linear(288, 2)))
opt = torch.optim.AdamW(net.parameters(), 1e-3)
ds = Images()
sampler = DistributedSampler(ds, drop_last=True)
dl = Ahead(DataLoader(ds, 8, sampler=sampler))
ACC = 2
for epoch in range(2):
    sampler.set_epoch(epoch)
    for i, ((x, y), last) in enumerate(dl):
        boundary = (i + 1) % ACC == 0
        with contextlib.nullcontext() if boundary else net.no_sync():
            (nn.functional.cross_entropy(net(x), y) / ACC).backward()
        if boundary:
            opt.step()
            opt.zero_grad()
dist.destroy_process_group()
