"""Call the forward of script.py, measure what autograd keeps, and count how often blocks are computed."""

import copy

import torch
import torch.distributed as dist
from measure import difference, refusing, report
from measure_memory import Objects, Storages
from torch import Tensor, nn

with refusing("threads", "processes"):
    from script import forward

SAMPLES, WIDTH, BLOCKS = 512, 32, 8
calls = pending = most = 0  # of blocks: calls, and those that were computed again and still wait for their gradients
is_backward = False


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Dropout(0.1), nn.Linear(WIDTH, WIDTH), nn.Tanh()
        )

    def finish(self, _: Tensor) -> None:
        global pending
        pending = max(0, pending - 1)

    def forward(self, inputs: Tensor) -> Tensor:
        global calls, pending, most
        calls += 1
        pending += is_backward
        most = max(most, pending)
        return inputs + self.layers(inputs)


def gradients(blocks: nn.ModuleList, compute, inputs: Tensor) -> Tensor:
    global is_backward
    torch.manual_seed(1)  # for dropout
    loss = (compute(blocks, inputs) ** 2).mean()
    is_backward = True
    loss.backward()
    is_backward = False
    return torch.cat([each.grad.flatten() for each in blocks.parameters()])


def plain(blocks: nn.ModuleList, inputs: Tensor) -> Tensor:
    for block in blocks:
        inputs = block(inputs)
    return inputs


def main() -> None:
    global pending, most
    torch.manual_seed(0)
    blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
    inputs = torch.rand(SAMPLES, WIDTH)
    wanted = gradients(copy.deepcopy(blocks), plain, inputs)
    gradients(copy.deepcopy(blocks), forward, inputs)  # imports what is imported late
    for block in blocks:
        block.layers[0].weight.register_post_accumulate_grad_hook(block.finish)  # nearly the last of a block
    pending = most = 0
    before, storages, objects = calls, Storages([*blocks.parameters(), inputs]), Objects()
    with objects, storages, refusing("files", "threads", "processes"):
        own = gradients(blocks, forward, inputs)
    report(
        gradients_differ=difference([(own, wanted)]),
        blocks_computed=calls - before,
        blocks_recomputed_at_once=most,
        bytes_of_activations=storages.most_bytes,
        bytes_of_objects=objects.most,
    )


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main()
    dist.destroy_process_group()
