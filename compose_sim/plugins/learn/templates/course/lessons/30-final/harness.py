"""Train eight blocks with the MLP of script.py on two by two ranks, compare with one rank, and measure memory and traffic."""

import copy

import torch
import torch.distributed as dist
from measure import Traffic, difference, report
from measure_memory import Storages
from script import MLP
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.functional import gelu

SAMPLES, WIDTH, HIDDEN, BLOCKS, STEPS = 8, 32, 128, 8, 3
RATE = 0.5


def of_this_rank(tensor: Tensor) -> Tensor:
    return tensor.to_local() if type(tensor.data) is DTensor else tensor


def chained(blocks, inputs: Tensor) -> Tensor:
    for block in blocks:
        inputs = inputs + block(inputs)
    return inputs


def step(parameters: list[nn.Parameter]) -> None:
    with torch.no_grad():
        for each in parameters:
            each -= RATE * each.grad
            each.grad.zero_()


def main() -> None:
    rank = dist.get_rank()
    # Every rank has to make every group, in the same order.
    tensor_group = [dist.new_group(ranks) for ranks in ([0, 1], [2, 3])][rank // 2]
    data_group = [dist.new_group(ranks) for ranks in ([0, 2], [1, 3])][rank % 2]
    torch.manual_seed(0)
    whole = [(nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)) for _ in range(BLOCKS)]
    theirs = [parameter for layers in whole for layer in layers for parameter in layer.parameters()]
    data = [(torch.randn(2 * SAMPLES, WIDTH), torch.randn(2 * SAMPLES, WIDTH)) for _ in range(STEPS)]
    blocks = nn.ModuleList(MLP(*copy.deepcopy(layers), tensor_group, data_group) for layers in whole)
    own = [*blocks.parameters()]
    for each in (*own, *theirs):
        each.grad = torch.zeros_like(each)
    differs, traffic = 0.0, Traffic()
    parts = [of_this_rank(each) for each in own]
    storages = Storages([*parts, *(of_this_rank(each.grad) for each in own)], at_least=WIDTH * HIDDEN // 4)
    for inputs, targets in data:
        some, wanted = (each.chunk(2)[rank // 2].clone() for each in (inputs, targets))
        outputs = chained([lambda some, up=up, down=down: down(gelu(up(some))) for up, down in whole], inputs)
        ((outputs - targets) ** 2).mean().backward()
        right = outputs.detach().chunk(2)[rank // 2]
        step(theirs)
        del outputs
        with storages, traffic:
            mine = chained(blocks, some)
            ((mine - wanted) ** 2).mean().backward()
        differs = max(differs, difference([(mine.detach(), right)]))
        step(own)
        del mine
    report(
        outputs_differ=differs,
        parameters_of_a_rank=sum(each.numel() for each in parts),
        whole_elements=storages.most,
        elements_per_step=traffic.elements() / STEPS,
    )


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main()
    dist.destroy_process_group()
