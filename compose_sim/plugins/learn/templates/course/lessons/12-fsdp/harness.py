"""Train with script.py, and measure how many parameters a rank holds as a whole while layers compute."""

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


def main() -> None:
    register_module_forward_pre_hook(look)
    register_module_forward_hook(look)
    train()
    parameters = sum(each.numel() for layer in layers for each in layer.parameters(recurse=False))
    report(parameters_of_the_model=parameters, whole_parameters=most)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main()
    dist.destroy_process_group()
