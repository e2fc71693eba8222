"""Train with script.py while a node dies, then once more, uninterrupted, and compare the parameters at the end."""

import os
from contextlib import redirect_stdout
from pathlib import Path

import torch
import torch.distributed as dist
from measure import report, wait_for_the_fault
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_pre_hook

SHARED = Path(os.environ["COMPOSESIM_SHARED"])
EPOCHS = 3
DIES_IN = 14  # the last checkpoint is that of step 10
steps = 0
batches: list[tuple] = []  # of this rank, in the uninterrupted run
masks: list[tuple] = []  # of its dropout
is_uninterrupted = False


def before_step(*_) -> None:
    """Count the steps, and let node-1 die in the 14th."""
    global steps
    steps += 1
    if steps == DIES_IN:
        wait_for_the_fault(steps)


def before_forward(module: nn.Module, given: tuple) -> None:
    if is_uninterrupted and isinstance(module, DistributedDataParallel):
        batches.append(tuple(map(tuple, given[0].tolist())))


def after_forward(module: nn.Module, given: tuple, output: Tensor) -> None:
    if is_uninterrupted and isinstance(module, nn.Dropout) and module.training:
        masks.append(tuple(((output == 0) & (given[0] != 0)).flatten().tolist()))


def everywhere(own: list[tuple]) -> list[list[tuple]]:
    """Return the list of each rank."""
    lists = [own] * dist.get_world_size()
    dist.all_gather_object(lists, own)
    return lists


def samples_of_epochs() -> list[int]:
    """Return how many different samples each epoch had."""
    length = max(1, len(batches) // EPOCHS)
    parts = [[each[first : first + length] for each in everywhere(batches)] for first in range(0, len(batches), length)]
    return [len({sample for rank in part for batch in rank for sample in batch}) for part in parts]


def parameters(model: nn.Module) -> Tensor:
    return torch.cat([each.detach().flatten().clone() for each in model.parameters()])


def main() -> None:
    global is_uninterrupted
    register_optimizer_step_pre_hook(before_step)
    register_module_forward_pre_hook(before_forward)
    register_module_forward_hook(after_forward)
    from script import train

    end = parameters(train())
    after_restart = steps
    dist.barrier()
    if dist.get_rank() == 0:
        for each in filter(Path.is_file, [*SHARED.rglob("*")]):
            each.unlink()
    dist.barrier()
    is_uninterrupted = True
    with redirect_stdout(None):
        other = parameters(train())
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "1":  # with another restart, nobody knows how many were made in all
        report(steps_repeated=DIES_IN - 1 + after_restart - (steps - after_restart))
    report(
        steps_without_checkpoint=steps - after_restart,
        steps_after_restart=after_restart,
        samples_per_epoch=min(samples_of_epochs(), default=0),
        different_batches=len({frozenset(each) for each in batches}),
        different_masks=len({mask for rank in everywhere(masks) for mask in rank}),
        end_differs=(end - other).abs().max().item(),
    )


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main()
    dist.destroy_process_group()
