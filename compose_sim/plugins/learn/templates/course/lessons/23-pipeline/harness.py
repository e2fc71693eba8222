"""Run a pipeline in the order of script.py, measure its time in units of work, what it keeps, and the gradients."""

from types import SimpleNamespace

import torch
import torch.distributed as dist
from measure import difference, report
from script import train_step
from torch import Tensor, nn

SAMPLES, WIDTH = 3, 8  # of a micro-batch


class Stage:
    """The layers of this rank. Each message carries the time at which it was sent; an operation takes one unit."""

    def __init__(self, layers: nn.Module, inputs: list[Tensor], targets: list[Tensor]) -> None:
        self.layers, self.inputs, self.targets = layers, inputs, targets
        self.rank, self.last = dist.get_rank(), dist.get_world_size() - 1
        self.now = self.most = 0
        self.kept: dict[int, tuple[Tensor, Tensor]] = {}
        self.sending: list[tuple[dist.Work, Tensor]] = []

    def operations(self) -> SimpleNamespace:
        """Return what a script may use: the clock and what is kept are not in it."""
        return SimpleNamespace(
            forward=lambda number: self.forward(number), backward=lambda number: self.backward(number)
        )

    def forward(self, number: int) -> None:
        inputs = self.inputs[number] if self.rank == 0 else self._receive(self.rank - 1, number)
        inputs.requires_grad_(self.rank > 0)
        self.kept[number] = inputs, self.layers(inputs)
        self.most = max(self.most, len(self.kept))
        self.now += 1
        if self.rank < self.last:
            self._send(self.rank + 1, number, self.kept[number][1])

    def backward(self, number: int) -> None:
        inputs, outputs = self.kept[number]
        if self.rank == self.last:
            loss = ((outputs - self.targets[number]) ** 2).sum()
            loss.backward()
        else:
            outputs.backward(self._receive(self.rank + 1, number))
        del self.kept[number]
        self.now += 1
        if self.rank:
            self._send(self.rank - 1, number, inputs.grad)

    def _send(self, other: int, number: int, tensor: Tensor) -> None:
        message = torch.cat([torch.tensor([float(self.now)]), tensor.detach().flatten()])
        self.sending.append((dist.isend(message, dst=other, tag=number), message))

    def _receive(self, other: int, number: int) -> Tensor:
        message = torch.empty(1 + SAMPLES * WIDTH)
        dist.recv(message, src=other, tag=number)
        self.now = max(self.now, int(message[0]))
        return message[1:].view(SAMPLES, WIDTH).clone()

    def finish(self) -> int:
        """Return the time at which the last rank ended."""
        for sending, _ in self.sending:
            sending.wait()
        latest = torch.tensor(self.now)
        dist.all_reduce(latest, op=dist.ReduceOp.MAX)
        return int(latest)


def one_step(microbatches: int) -> tuple[int, int, float]:
    """Return the units of time, the micro-batches that this rank kept at once, and how much its gradients differ."""
    torch.manual_seed(microbatches)
    layers = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(dist.get_world_size())))
    inputs, targets = ([*torch.randn(microbatches, SAMPLES, WIDTH)] for _ in range(2))
    own = [*layers[dist.get_rank()].parameters()]
    ((layers(torch.cat(inputs)) - torch.cat(targets)) ** 2).sum().backward()
    wanted = [each.grad.clone() for each in own]
    layers.zero_grad()
    stage = Stage(layers[dist.get_rank()], inputs, targets)
    train_step(stage.operations(), microbatches)
    found = [torch.zeros_like(each) if each.grad is None else each.grad for each in own]
    return stage.finish(), stage.most, difference(zip(found, wanted, strict=True))


def main() -> None:
    (eight, kept, differs), (two, _, also_differs) = one_step(8), one_step(2)
    report(
        units_for_8_microbatches=eight,
        units_for_2_microbatches=two,
        microbatches_kept=kept,
        gradients_differ=max(differs, also_differs),
    )


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main()
    dist.destroy_process_group()
