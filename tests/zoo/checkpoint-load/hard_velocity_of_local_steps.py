"""Local steps with a velocity of each rank, averaged weights now and then; all ranks go on from the checkpoint of rank 0."""

import torch
import torch.distributed as dist
from torch import Tensor, nn

STEPS, BETWEEN, PATH = 12, 4, "local.pt"
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()


class LocalMomentum:
    """SGD with momentum on each rank, and the mean of the weights after every few steps."""

    def __init__(self, model: nn.Module, rate: float = 0.05, decay: float = 0.8) -> None:
        self.weights = list(model.parameters())
        self.rate, self.decay, self.steps = rate, decay, 0
        self.velocities = [torch.zeros_like(each) for each in self.weights]

    @torch.no_grad()
    def step(self) -> None:
        self.steps += 1
        for weight, velocity in zip(self.weights, self.velocities, strict=True):
            velocity.mul_(self.decay).add_(weight.grad)
            weight.sub_(self.rate * velocity)
            weight.grad = None
            if self.steps % BETWEEN == 0:
                dist.all_reduce(weight)
                weight.div_(world)

    def load(self, velocities: list[Tensor]) -> None:
        for mine, given in zip(self.velocities, velocities, strict=True):
            mine.copy_(given)


def train(model: nn.Module, optimizer: LocalMomentum, samples: torch.Generator) -> None:
    for _ in range(STEPS):
        x = torch.randn(16, 9, generator=samples)
        (model(x) - x[:, :3].sin()).square().mean().backward()
        optimizer.step()


torch.manual_seed(12)
model = nn.Sequential(nn.Linear(9, 20), nn.Tanh(), nn.Linear(20, 3))
optimizer = LocalMomentum(model)
samples = torch.Generator().manual_seed(30 + rank)
train(model, optimizer, samples)
if rank == 0:
    torch.save({"model": model.state_dict(), "velocities": optimizer.velocities}, PATH)
dist.barrier()
state = torch.load(PATH)
model.load_state_dict(state["model"])
optimizer = LocalMomentum(model)
optimizer.load(state["velocities"])
train(model, optimizer, samples)
dist.destroy_process_group()
