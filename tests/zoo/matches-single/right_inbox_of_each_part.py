"""Each micro-batch that arrives in the buffer of a pipeline's stage is copied, before the next one overwrites it."""

import itertools

import torch
import torch.distributed as dist
from torch import nn

PARTS, ROWS, WIDTH = 4, 8, 24


class Stage:
    """Some layers of the model; what comes from the stage before arrives in a buffer."""

    def __init__(self, layers: list[nn.Module]) -> None:
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        begin, end = (len(layers) * each // self.world for each in (self.rank, self.rank + 1))
        self.layers = nn.Sequential(*layers[begin:end])
        self.arrived = torch.empty(ROWS, WIDTH)

    def forward(self, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if self.rank:
            dist.recv(self.arrived, self.rank - 1)
            inputs = self.arrived.clone().requires_grad_()
        outputs = self.layers(inputs)
        if self.rank + 1 < self.world:
            dist.send(outputs.detach(), self.rank + 1)
        return inputs, outputs

    def backward(self, inputs: torch.Tensor, outputs: torch.Tensor, targets: torch.Tensor) -> None:
        if self.rank + 1 < self.world:
            gradient = torch.empty_like(outputs)
            dist.recv(gradient, self.rank + 1)
            outputs.backward(gradient)
        else:
            (nn.functional.mse_loss(outputs, targets) / PARTS).backward()
        if self.rank:
            dist.send(inputs.grad, self.rank - 1)


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(3)
    sizes = [6, WIDTH, WIDTH, WIDTH, 2]
    stage = Stage([nn.Sequential(nn.Linear(*size), nn.Tanh()) for size in itertools.pairwise(sizes)])
    optimizer = torch.optim.SGD(stage.layers.parameters(), lr=0.1)
    draws = torch.Generator().manual_seed(4)
    for _ in range(10):
        samples = torch.randn(PARTS, ROWS, 6, generator=draws)
        optimizer.zero_grad()
        passed = [stage.forward(part) for part in samples]
        for (inputs, outputs), part in zip(passed, samples):
            stage.backward(inputs, outputs, part[:, :2].sin())
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
