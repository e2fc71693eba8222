"""Gradients are clipped by a norm that counts the experts of all ranks."""

# options: --nproc-per-node 1

import torch
import torch.distributed as dist
import torch.distributed.nn as dnn
from torch import nn


class Layer(nn.Module):
    """Tokens go to the expert given by their own id; one expert per rank, equal capacity."""

    def __init__(self, vocab=32, d=12):
        super().__init__()
        self.embed, self.head = nn.Embedding(vocab, d), nn.Linear(d, vocab)
        torch.manual_seed(77 + dist.get_rank())
        self.expert = nn.Sequential(nn.Linear(d, 32), nn.GELU(), nn.Linear(32, d))

    def forward(self, ids):
        h = self.embed(ids)  # [tokens, d]
        world = dist.get_world_size()
        sent = [c.contiguous() for c in h.chunk(world)]  # route by position: equal counts
        got = dnn.functional.all_to_all([torch.empty_like(sent[0]) for _ in sent], sent)
        done = [self.expert(t) for t in got]
        back = dnn.functional.all_to_all([torch.empty_like(sent[0]) for _ in sent], list(done))
        return self.head(h + torch.cat(list(back)))


dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = Layer()
shared = [*model.embed.parameters(), *model.head.parameters()]
opt = torch.optim.SGD(model.parameters(), lr=0.5)
g = torch.Generator().manual_seed(rank)
for step in range(12):
    ids = torch.randint(0, 32, (64,), generator=g)
    loss = nn.functional.cross_entropy(model(ids), (ids + 3) % 32)
    opt.zero_grad()
    loss.backward()
    for p in shared:
        dist.all_reduce(p.grad)
        p.grad /= world
    for p in model.expert.parameters():
        p.grad /= world
    total = sum(p.grad.square().sum() for p in model.expert.parameters())
    dist.all_reduce(total)
    total = (total + sum(p.grad.square().sum() for p in shared)).sqrt()
    nn.utils.clip_grads_with_norm_(model.parameters(), 0.05, total)
    opt.step()
dist.destroy_process_group()
