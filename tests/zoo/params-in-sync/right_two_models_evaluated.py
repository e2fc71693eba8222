"""All ranks evaluate the model and its average, which all of them update."""

import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Average:
    """A moving average of a model's weights."""

    def __init__(self, model: nn.Module) -> None:
        self.model = copy.deepcopy(model).requires_grad_(False)

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        for mean, new in zip(self.model.parameters(), model.parameters()):
            mean.lerp_(new, 0.1)


@torch.no_grad()
def error(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> float:
    rank, world = dist.get_rank(), dist.get_world_size()
    total = (model(inputs[rank::world]) - targets[rank::world]).square().sum()
    dist.all_reduce(total)
    return total.item() / len(targets)


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 1))
    model, average = DistributedDataParallel(net), Average(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    draws = torch.Generator().manual_seed(1)
    inputs = torch.randn(320, 5, generator=draws)
    targets = inputs[:, :1] * inputs[:, 1:2]
    for epoch in range(3):
        for batch in torch.randperm(256, generator=draws).split(32):
            own = batch[rank::world]
            optimizer.zero_grad()
            nn.functional.mse_loss(model(inputs[own]), targets[own]).backward()
            optimizer.step()
            average.update(net)
        errors = [error(each, inputs[256:], targets[256:]) for each in (net, average.model)]
        if rank == 0:
            print(f"epoch {epoch}: validation error {errors[0]:.4f}, of the average {errors[1]:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
