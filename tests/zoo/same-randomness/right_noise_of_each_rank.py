"""A denoiser whose noise comes from a generator of each rank: the second half of the run goes on from a checkpoint."""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

STEPS, BATCH = 10, 16
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
path = "last.pt"


def signals(step: int) -> Tensor:
    """Return this rank's part of a batch."""
    phases = torch.rand(BATCH * world, 1, generator=torch.Generator().manual_seed(step))
    return torch.sin(6.28 * (phases + torch.linspace(0, 1, 12)))[rank::world]


class Run:
    def __init__(self) -> None:
        torch.manual_seed(4)
        self.model = DistributedDataParallel(nn.Sequential(nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 12)))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-2)
        self.noise = torch.Generator().manual_seed(100 + rank)

    def train(self, first: int, last: int) -> None:
        for step in range(first, last):
            clean = signals(step)
            noisy = clean + 0.4 * torch.randn(clean.shape, generator=self.noise)
            self.optimizer.zero_grad()
            (self.model(noisy) - clean).square().mean().backward()
            self.optimizer.step()

    def save(self) -> None:
        noises: list[Tensor | None] = [None] * world
        dist.all_gather_object(noises, self.noise.get_state())
        if rank == 0:
            state = {"model": self.model.module.state_dict(), "optimizer": self.optimizer.state_dict()}
            torch.save({**state, "noises": noises}, path)
        dist.barrier()

    def load(self) -> None:
        state = torch.load(path, map_location="cpu")
        self.model.module.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.noise.set_state(state["noises"][rank])


first = Run()
first.train(0, STEPS)
first.save()
second = Run()
second.load()
second.train(STEPS, 2 * STEPS)
dist.destroy_process_group()
