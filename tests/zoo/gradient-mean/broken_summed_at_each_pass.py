"""A hook adds up each gradient over ranks after every backward pass, also what the passes before have added up already."""

# expects: gradient-mean
# also: matches-single
# options: --nproc-per-node 1

import torch
import torch.distributed as dist
from torch import nn

MICRO = 2


class Trainer:
    def __init__(self, model):
        self.model, self.world = model, dist.get_world_size()
        for t in list(model.parameters()) + list(model.buffers()):
            dist.broadcast(t.data, 0)
        for p in model.parameters():
            p.register_post_accumulate_grad_hook(lambda q: dist.all_reduce(q.grad))
        self.opt = torch.optim.SGD(model.parameters(), lr=0.05)

    def step(self, chunks):
        for x, y in chunks:
            (nn.functional.mse_loss(self.model(x), y) / len(chunks)).backward()
        for p in self.model.parameters():
            p.grad /= self.world
        self.opt.step()
        self.opt.zero_grad()


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    trainer = Trainer(nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 1)))
    g = torch.Generator().manual_seed(5)
    points = torch.randn(128, 6, generator=g)
    values = points.sum(1, keepdim=True).sin()
    per = 16 // world
    for start in range(0, 128, 16):
        x, y = points[start : start + 16], values[start : start + 16]
        x, y = x[rank * per : (rank + 1) * per], y[rank * per : (rank + 1) * per]
        trainer.step(list(zip(x.chunk(MICRO), y.chunk(MICRO))))
    dist.destroy_process_group()


main()
