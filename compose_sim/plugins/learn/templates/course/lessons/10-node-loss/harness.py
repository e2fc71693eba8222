"""Train with script.py through a lost node, then once more without any, and compare the parameters at the end."""

import os
import time
from collections.abc import Iterable
from contextlib import redirect_stdout
from pathlib import Path

import torch
import torch.distributed as dist
from measure import report, wait_for_the_fault
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook

SHARED = Path(os.environ["COMPOSESIM_SHARED"])
DIES_AFTER = 25
steps = 0
is_new = False  # whether the next step is the first of the uninterrupted training
first = torch.zeros(())  # the parameters after that step


def count(optimizer: torch.optim.Optimizer, *_) -> None:
    """Count the steps, and let node-1 die after the 25th step."""
    global steps, first, is_new
    steps += 1
    if is_new:
        first, is_new = joined(each for group in optimizer.param_groups for each in group["params"]), False
    if steps == DIES_AFTER:
        wait_for_the_fault(steps)


def joined(parameters: Iterable[Tensor]) -> Tensor:
    return torch.cat([each.detach().flatten().clone() for each in parameters])


def main() -> None:
    global is_new
    register_optimizer_step_post_hook(count)
    from script import train

    end = joined(train().parameters())
    after_restart = steps
    dist.barrier()
    if dist.get_rank() == 0:
        for each in filter(Path.is_file, [*SHARED.rglob("*")]):
            each.unlink()
    dist.barrier()
    time.sleep, is_new = lambda _: None, True
    with redirect_stdout(None):
        other = joined(train().parameters())
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "1":  # with another restart, nobody knows how many were made in all
        report(steps_repeated=DIES_AFTER + after_restart - (steps - after_restart))
    report(
        steps_after_restart=after_restart,
        steps_without_checkpoint=steps - after_restart,
        end_differs=(end - other).abs().max().item(),
        parameters_moved=(other - first).abs().max().item(),
    )


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main()
    dist.destroy_process_group()
