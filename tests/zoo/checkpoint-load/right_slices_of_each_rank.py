"""Momentum in slices of one flat vector, one slice a rank, with a checkpoint half way."""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

STEPS, PATH = 12, "sliced.pt"
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()


class SlicedMomentum:
    """SGD with momentum, of which each rank keeps a slice."""

    def __init__(self, model: nn.Module, rate: float = 0.05, decay: float = 0.9) -> None:
        self.model, self.rate, self.decay = model, rate, decay
        self.size = sum(each.numel() for each in model.parameters())
        self.part = -(-self.size // world)
        self.velocity = torch.zeros(self.part)

    def padded(self, tensors: list[Tensor]) -> Tensor:
        return nn.functional.pad(torch.cat([each.flatten() for each in tensors]), (0, self.part * world - self.size))

    @torch.no_grad()
    def step(self) -> None:
        gradient = self.padded([each.grad for each in self.model.parameters()])
        dist.all_reduce(gradient)
        mine = slice(rank * self.part, (rank + 1) * self.part)
        self.velocity.mul_(self.decay).add_(gradient[mine] / world)
        weights = self.padded([parameters_to_vector(self.model.parameters())])[mine] - self.rate * self.velocity
        parts = [torch.empty_like(weights) for _ in range(world)]
        dist.all_gather(parts, weights)
        vector_to_parameters(torch.cat(parts)[: self.size], self.model.parameters())

    def state_dict(self) -> dict[str, Tensor]:
        return {"velocity": self.velocity}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.velocity.copy_(state["velocity"])


def build() -> tuple[nn.Module, SlicedMomentum]:
    torch.manual_seed(8)
    model = nn.Sequential(nn.Linear(9, 20), nn.Tanh(), nn.Linear(20, 3))
    return model, SlicedMomentum(model)


def train(model: nn.Module, optimizer: SlicedMomentum, first: int, last: int) -> None:
    for step in range(first, last):
        x = torch.randn(world * 8, 9, generator=torch.Generator().manual_seed(step))[rank::world]
        model.zero_grad()
        (model(x) - x[:, :3] * x[:, 3:6]).square().mean().backward()
        optimizer.step()


model, optimizer = build()
train(model, optimizer, 0, STEPS)
slices = [torch.empty_like(optimizer.velocity) for _ in range(world)]
dist.all_gather(slices, optimizer.velocity)
if rank == 0:
    torch.save({"model": model.state_dict(), "velocities": slices}, PATH)
dist.barrier()
model, optimizer = build()
state = torch.load(PATH)
model.load_state_dict(state["model"])
optimizer.load_state_dict({"velocity": state["velocities"][rank]})
train(model, optimizer, STEPS, 2 * STEPS)
dist.destroy_process_group()
