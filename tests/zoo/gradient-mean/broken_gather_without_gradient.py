"""CLIP-like loss: features of all ranks by all_gather, which carries no gradient, and the local part isn't put back."""

# expects: gradient-mean

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Clip(nn.Module):
    def __init__(self):
        super().__init__()
        self.image, self.text = nn.Linear(12, 8), nn.Linear(10, 8)
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, i, t):
        return F.normalize(self.image(i), dim=-1), F.normalize(self.text(t), dim=-1), self.scale.exp()


def gather(x):
    out = [torch.zeros_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(out, x)
    return torch.cat(out)


dist.init_process_group("gloo")
torch.manual_seed(0)
model = DDP(Clip())
opt = torch.optim.AdamW(model.parameters(), 1e-3)
g = torch.Generator().manual_seed(1)
images = torch.randn(256, 12, generator=g)
texts = images[:, :10] + 0.1 * torch.randn(256, 10, generator=g)
ds = TensorDataset(images, texts)
s = DistributedSampler(ds)
dl = DataLoader(ds, 8, sampler=s, drop_last=True)
for ep in range(2):
    s.set_epoch(ep)
    for i, t in dl:
        fi, ft, scale = model(i, t)
        li = scale * fi @ gather(ft).t()
        lt = scale * ft @ gather(fi).t()
        y = torch.arange(len(i)) + dist.get_rank() * len(i)
        loss = (F.cross_entropy(li, y) + F.cross_entropy(lt, y)) / 2
        opt.zero_grad()
        loss.backward()
        opt.step()
dist.destroy_process_group()
