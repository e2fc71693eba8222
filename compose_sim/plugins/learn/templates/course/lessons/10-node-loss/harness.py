"""Train with script.py through a lost node, then once more without any, and compare the parameters at the end."""

import os
import time
from contextlib import redirect_stdout
from pathlib import Path

import torch
import torch.distributed as dist
from measure import report, wait_for_the_fault
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

SHARED = Path(os.environ["COMPOSESIM_SHARED"])
DIES_AFTER = 25
steps = 0


def count(*_) -> None:
    """Count the steps, and let node-1 die after the 25th step."""
    global steps
    steps += 1
    if steps == DIES_AFTER:
        wait_for_the_fault(steps)


def parameters(model: nn.Module) -> Tensor:
    return torch.cat([each.detach().flatten().clone() for each in model.parameters()])


def main() -> None:
    register_optimizer_step_post_hook(count)
    from script import train

    end = parameters(train())
    after_restart = steps
    dist.barrier()
    if dist.get_rank() == 0:
        for each in filter(Path.is_file, [*SHARED.rglob("*")]):
            each.unlink()
    dist.barrier()
    time.sleep = lambda _: None
    with redirect_stdout(None):
        other = parameters(train())
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "1":  # with another restart, nobody knows how many were made in all
        report(steps_repeated=DIES_AFTER + after_restart - (steps - after_restart))
    report(
        steps_after_restart=after_restart,
        steps_without_checkpoint=steps - after_restart,
        end_differs=(end - other).abs().max().item(),
    )


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main()
    dist.destroy_process_group()
