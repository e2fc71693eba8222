"""Call the train_step of script.py, and measure what a rank holds: parameters, gradients, Adam's state and activations."""

import copy

import torch
import torch.distributed as dist
from measure import difference, report
from measure_memory import Activations
from script import train_step
from torch import nn

SAMPLES, STEPS = 256, 3


def build() -> nn.Sequential:
    blocks = [layer for _ in range(3) for layer in (nn.Linear(64, 64), nn.Tanh())]
    return nn.Sequential(*blocks, nn.Linear(64, 1))


def bytes_of(tensors) -> int:
    return sum(each.numel() * each.element_size() for each in tensors)


def main() -> None:
    torch.manual_seed(0)
    model = build()
    theirs = copy.deepcopy(model)
    optimizers = [torch.optim.Adam(each.parameters(), lr=0.01) for each in (model, theirs)]
    activations = Activations([*model.parameters()])
    generator = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(STEPS):
        inputs = torch.rand(SAMPLES, 64, generator=generator)
        targets = inputs.mean(1, keepdim=True)
        with activations:
            train_step(model, optimizers[0], inputs, targets)
        optimizers[1].zero_grad()
        nn.functional.mse_loss(theirs(inputs), targets).backward()
        optimizers[1].step()
    state = [each for of_one in optimizers[0].state.values() for each in of_one.values() if each.dim()]
    gradients = [each.grad for each in model.parameters() if each.grad is not None]
    held = [*model.parameters(), *gradients, *state]
    report(
        end_differs=difference(zip(model.parameters(), theirs.parameters(), strict=True)),
        bytes_without_activations=bytes_of(held),
        bytes_of_activations=activations.most,
    )


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main()
    dist.destroy_process_group()
