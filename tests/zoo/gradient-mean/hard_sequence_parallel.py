"""Sequence parallelism: ranks hold slices of the same sequences, keys and values are gathered with autograd."""

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as dnn
import torch.nn as nn
import torch.nn.functional as F

dist.init_process_group()
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(11)
D, T, V = 16, 32, 20


def gathered(part):
    parts = dnn.all_gather(part.contiguous())
    for each in parts:
        each.register_hook(torch.Tensor.contiguous)  # NCCL refuses the slices that the gradient of `cat` consists of
    return torch.cat(parts, 1)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.ff = nn.Sequential(nn.LayerNorm(D), nn.Linear(D, 2 * D), nn.GELU(), nn.Linear(2 * D, D))

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        k, v = gathered(k), gathered(v)
        t = x.shape[1]
        rows = torch.arange(rank * t, (rank + 1) * t)[:, None]
        mask = torch.arange(k.shape[1])[None] <= rows
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, attn_mask=mask))
        return x + self.ff(x)


emb, blocks, head = nn.Embedding(V, D), nn.ModuleList([Block(), Block()]), nn.Linear(D, V)
params = [*emb.parameters(), *blocks.parameters(), *head.parameters()]
opt = torch.optim.AdamW(params, lr=2e-3)
gen = torch.Generator().manual_seed(9)
for step in range(10):
    tokens = torch.randint(0, V, (4, T + 1), generator=gen)
    part = slice(rank * T // world, (rank + 1) * T // world)
    x, y = tokens[:, :-1][:, part], tokens[:, 1:][:, part]
    h = emb(x)
    for b in blocks:
        h = b(h)
    loss = F.cross_entropy(head(h).reshape(-1, V), y.reshape(-1))
    opt.zero_grad()
    loss.backward()
    for p in params:
        dist.all_reduce(p.grad)
        p.grad /= world
    opt.step()
    total = loss.detach().clone()
    dist.all_reduce(total)
    if rank == 0:
        print(f"step {step} loss {total.item() / world:.4f}")
dist.destroy_process_group()
