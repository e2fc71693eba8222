"""Compute two blocks with the ParallelMLP of script.py, compare with whole layers, and count the collectives."""

import copy

import torch
import torch.distributed as dist
from measure import Traffic, difference, report
from script import ParallelMLP
from torch import Tensor, nn
from torch.nn.functional import gelu

SAMPLES, WIDTH, HIDDEN, BLOCKS = 6, 16, 64, 2


def chained(blocks, inputs: Tensor) -> Tensor:
    for block in blocks:
        inputs = inputs + block(inputs)
    return inputs


def main() -> None:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)  # whole layers, inputs and targets are the same on all ranks
    whole = [(nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)) for _ in range(BLOCKS)]
    blocks = [ParallelMLP(*copy.deepcopy(layers)) for layers in whole]
    with torch.no_grad():  # as an optimizer would; a copy that a script has kept is now out of date
        for each in (*(parameter for layers in whole for layer in layers for parameter in layer.parameters()),):
            each *= 1.5
        for block in blocks:
            for each in block.parameters():
                each *= 1.5
    inputs, targets = torch.randn(SAMPLES, WIDTH, requires_grad=True), torch.randn(SAMPLES, WIDTH)
    theirs = inputs.detach().clone().requires_grad_()
    wanted = chained([lambda some, up=up, down=down: down(gelu(up(some))) for up, down in whole], theirs)
    ((wanted - targets) ** 2).sum().backward()
    forward, backward = Traffic(), Traffic()
    with forward:
        outputs = chained(blocks, inputs)
    loss = ((outputs - targets) ** 2).sum()
    with backward:
        loss.backward()
    gradients = []
    for block, (up, down) in zip(blocks, whole, strict=True):
        gradients += [
            (block.up_weight.grad, up.weight.grad.chunk(ranks, dim=0)[rank]),
            (block.up_bias.grad, up.bias.grad.chunk(ranks)[rank]),
            (block.down_weight.grad, down.weight.grad.chunk(ranks, dim=1)[rank]),
            (block.down_bias.grad, down.bias.grad),
        ]
    report(
        outputs_differ=difference([(outputs.detach(), wanted.detach())]),
        input_gradients_differ=difference([(inputs.grad, theirs.grad)]),
        gradients_differ=difference(gradients),
        collectives_in_forward=len(forward.collectives) / BLOCKS,
        collectives_in_backward=len(backward.collectives) / BLOCKS,
        largest_collective=max((one[1] for one in (*forward.collectives, *backward.collectives)), default=0),
    )


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main()
    dist.destroy_process_group()
