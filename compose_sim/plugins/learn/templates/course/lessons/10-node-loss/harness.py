"""Train with script.py through a lost node, then once more without any, and compare the parameters at the end."""

import os
import time
from contextlib import redirect_stdout
from pathlib import Path

import torch
import torch.distributed as dist
from measure import report
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

SHARED = Path(os.environ["COMPOSESIM_SHARED"])
steps = 0


def count(*_) -> None:
    global steps
    steps += 1


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
    report(
        steps_after_restart=after_restart,
        steps_without_checkpoint=steps - after_restart,
        end_differs=(end - other).abs().max().item(),
    )


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main()
    dist.destroy_process_group()
