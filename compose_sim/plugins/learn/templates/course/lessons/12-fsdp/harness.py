"""Train with script.py, and measure how many parameters a rank holds as a whole while layers compute."""

import zlib

import torch
import torch.distributed as dist
from measure import report
from script import train
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

layers: dict[nn.Module, None] = {}  # those that have parameters of their own, in order
most = 0


def look(layer: nn.Module, *_) -> None:
    global most
    own = [*layer.parameters(recurse=False)]
    if own:
        layers[layer] = None
        whole = [each for known in layers for each in known.parameters(recurse=False) if not isinstance(each, DTensor)]
        most = max(most, sum(each.numel() for each in whole))


def differ() -> bool:
    """Return whether parameters that are not sharded have become different on the ranks."""
    kept = (each for layer in layers for each in layer.parameters(recurse=False) if not isinstance(each, DTensor))
    own = torch.tensor(zlib.crc32(b"".join(each.detach().numpy().tobytes() for each in kept)))
    of_all = [torch.zeros_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(of_all, own)
    return len({int(each) for each in of_all}) > 1


def main() -> None:
    register_module_forward_pre_hook(look)
    register_module_forward_hook(look)
    train()
    parameters = sum(each.numel() for layer in layers for each in layer.parameters(recurse=False))
    report(parameters_of_the_model=parameters, whole_parameters=most, ranks_differ=differ())


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main()
    dist.destroy_process_group()
