"""Router and trunk are replicated, each rank owns one expert, and tokens travel by all_to_all."""

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()


class AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        out = torch.empty_like(x)
        dist.all_to_all_single(out, x.contiguous())
        return out

    @staticmethod
    def backward(ctx, g):
        return AllToAll.apply(g.contiguous())


class MoE(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.gate = nn.Linear(d, world)
        with torch.random.fork_rng():
            torch.manual_seed(1000 + rank)
            self.expert = nn.Sequential(nn.Linear(d, 2 * d), nn.ReLU(), nn.Linear(2 * d, d))

    def forward(self, x):
        w = self.gate(x).softmax(-1)  # tokens, experts
        send = x.unsqueeze(0).expand(world, -1, -1)  # dense dispatch: every expert sees every token
        got = AllToAll.apply(send.contiguous())
        back = AllToAll.apply(self.expert(got.reshape(-1, x.shape[-1])).reshape(got.shape))
        return x + (w.t().unsqueeze(-1) * back).sum(0)


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 16), MoE(16), nn.Linear(16, 2))
experts = list(model[1].expert.parameters())
ids = {id(p) for p in experts}
shared = [p for p in model.parameters() if id(p) not in ids]
opt = torch.optim.AdamW(model.parameters(), lr=5e-3)
g = torch.Generator().manual_seed(50 + rank)
for step in range(10):
    x = torch.randn(16, 6, generator=g)
    y = (x[:, 0] > x[:, 1]).long()
    loss = F.cross_entropy(model(x), y)
    opt.zero_grad()
    loss.backward()
    for p in shared:
        dist.all_reduce(p.grad, op=dist.ReduceOp.SUM)
        p.grad.div_(world)
    for p in experts:
        p.grad.div_(world)  # it has already seen the tokens of all ranks
    opt.step()
    if rank == 0 and step % 5 == 0:
        print(step, float(loss))
dist.destroy_process_group()
