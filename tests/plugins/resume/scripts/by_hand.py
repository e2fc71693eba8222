"""Momentum without an optimizer of torch, averaged over the ranks by hand."""

from pathlib import Path

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(3)
net = torch.nn.Sequential(torch.nn.Linear(6, 12), torch.nn.Tanh(), torch.nn.Linear(12, 1))


class Momentum:
    def __init__(self, parameters):
        self.parameters = list(parameters)
        self.velocity = [torch.zeros_like(each) for each in self.parameters]

    @torch.no_grad()
    def step(self):
        for each, velocity in zip(self.parameters, self.velocity, strict=True):
            dist.all_reduce(each.grad)
            velocity.mul_(0.9).add_(each.grad / world)
            each.sub_(velocity, alpha=0.02)
            each.grad = None


momentum = Momentum(net.parameters())
first = 0
SAVED = Path("training.pt")
if SAVED.exists():
    state = torch.load(SAVED)
    net.load_state_dict(state["net"])
    momentum.velocity = state["velocity"]
    first = state["step"]
for step in range(first, 24):
    generator = torch.Generator().manual_seed(100 * step + rank)
    x = torch.randn(16, 6, generator=generator)
    loss = (net(x) - x.sum(1, keepdim=True)).square().mean()
    loss.backward()
    momentum.step()
    if step % 6 == 5:
        if rank == 0:
            torch.save({"net": net.state_dict(), "velocity": momentum.velocity, "step": step + 1}, "new.pt")
            Path("new.pt").replace(SAVED)
        dist.barrier()
dist.destroy_process_group()
