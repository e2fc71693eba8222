"""DiLoCo: the outer momentum collects each rank's own changes, before they are averaged."""

# expects: params-in-sync

import torch
import torch.distributed as dist
from torch import nn

INNER, OUTER, MOMENTUM, RATE = 4, 4, 0.9, 0.5


class OuterStep:
    def __init__(self, model):
        self.parameters = list(model.parameters())
        self.anchors = [p.detach().clone() for p in self.parameters]
        self.velocities = [torch.zeros_like(p) for p in self.anchors]

    @torch.no_grad()
    def __call__(self):
        for parameter, anchor, velocity in zip(self.parameters, self.anchors, self.velocities):
            change = anchor - parameter
            velocity.mul_(MOMENTUM).add_(change)
            dist.all_reduce(change)
            change /= dist.get_world_size()
            anchor.sub_(RATE * (change + MOMENTUM * velocity))
            parameter.copy_(anchor)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
    inner = torch.optim.AdamW(model.parameters(), 1e-2)
    outer = OuterStep(model)
    x = torch.randn(800, 6, generator=torch.Generator().manual_seed(1))[rank::world]
    y = x.abs().sum(1, keepdim=True)
    draw = torch.Generator().manual_seed(2 + rank)
    for _ in range(OUTER):
        for _ in range(INNER):
            rows = torch.randint(len(x), (32,), generator=draw)
            loss = nn.functional.mse_loss(model(x[rows]), y[rows])
            inner.zero_grad()
            loss.backward()
            inner.step()
        outer()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
