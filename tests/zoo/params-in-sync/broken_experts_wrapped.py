"""Each rank is meant to own its own expert, but the whole model is wrapped by DDP."""

# expects: params-in-sync

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()


class A2A(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        o = torch.empty_like(x)
        dist.all_to_all_single(o, x.contiguous())
        return o

    @staticmethod
    def backward(ctx, g):
        g = g.contiguous()
        o = torch.empty_like(g)
        dist.all_to_all_single(o, g)
        return o


class MoE(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.gate = nn.Linear(d, world)
        torch.manual_seed(100 + rank)
        self.expert = nn.Sequential(nn.Linear(d, 2 * d), nn.ReLU(), nn.Linear(2 * d, d))

    def forward(self, x):
        w = self.gate(x).softmax(-1)
        got = A2A.apply(x.unsqueeze(0).expand(world, -1, -1).contiguous())
        back = A2A.apply(self.expert(got))
        return x + (w.t().unsqueeze(-1) * back).sum(0)


torch.manual_seed(0)
body = nn.Linear(6, 16)
moe = MoE(16)
torch.manual_seed(1)
head = nn.Linear(16, 2)
model = DDP(nn.Sequential(body, moe, head))
opt = torch.optim.Adam(model.parameters(), 5e-3)
g = torch.Generator().manual_seed(7)
X = torch.randn(256, 6, generator=g)
ds = torch.utils.data.TensorDataset(X, (X[:, 0] > X[:, 1]).long())
s = torch.utils.data.DistributedSampler(ds)
for epoch in range(2):
    s.set_epoch(epoch)
    for x, y in torch.utils.data.DataLoader(ds, 8, sampler=s):
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
dist.destroy_process_group()
