"""Train with the DataParallel of script.py and with torch's own wrapper, compare them, and count the all-reduces."""

import copy
import json

import torch
import torch.distributed as dist
from script import DataParallel
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS = 5
in_backward = False
calls: list[bool] = []  # for each all-reduce, whether it was started while backward was running


def build() -> nn.Sequential:
    layers = [layer for _ in range(5) for layer in (nn.Linear(48, 48), nn.Tanh())]
    return nn.Sequential(*layers, nn.Linear(48, 1))


def note_the_end(_: nn.Module, __: object, ___: object) -> None:
    """The gradients of the first layer come last: when they are ready, backward is over."""
    global in_backward
    in_backward = False


def main() -> None:
    global in_backward
    rank, true_all_reduce = dist.get_rank(), dist.all_reduce

    def counted(*args, **kwargs):
        calls.append(in_backward)
        return true_all_reduce(*args, **kwargs)

    torch.manual_seed(rank)  # the ranks begin with different parameters: the wrapper has to make them equal
    own_module = build()
    theirs = DistributedDataParallel(copy.deepcopy(own_module))
    dist.all_reduce = counted
    own = DataParallel(own_module)
    own_module[0].register_full_backward_hook(note_the_end)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (theirs, own)]
    generator = torch.Generator().manual_seed(100 + rank)
    difference = 0.0
    for _ in range(STEPS):
        inputs = torch.rand(16, 48, generator=generator)
        for model, optimizer in zip((theirs, own), optimizers, strict=True):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), inputs.mean(1, keepdim=True))
            in_backward = model is own
            loss.backward()
            in_backward = False
            if model is own:
                own.finish()
            optimizer.step()
        for mine, wanted in zip(own_module.parameters(), theirs.module.parameters(), strict=True):
            difference = max(difference, (mine.grad - wanted.grad).abs().max().item())
    flat = torch.cat([parameter.detach().flatten() for parameter in own_module.parameters()])
    others = [torch.empty_like(flat) for _ in range(dist.get_world_size())]
    dist.all_gather(others, flat)
    if rank == 0:
        metrics = {
            "largest_difference": difference,
            "parameters_differ": sum(int((each != flat).sum()) for each in others),
            "all_reduces_per_step": len(calls) / STEPS,
            "started_in_backward": sum(calls) / STEPS,
        }
        print(json.dumps({"step": STEPS, **metrics}), flush=True)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main()
    dist.destroy_process_group()
