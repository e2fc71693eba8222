"""Train with script.py, and compare what its `evaluate` returns on rank 0 with the mean loss over all samples."""

import script
import torch
import torch.distributed as dist
from measure import report
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

steps = 0
evaluated: list[int] = []  # optimizer steps before each evaluation
wrong = 0
evaluate = script.evaluate


def count(*_) -> None:
    global steps
    steps += 1


@torch.no_grad()
def compared(model: nn.Module, data, *args, **kwargs):
    global wrong
    loss = evaluate(model, data, *args, **kwargs)
    if dist.get_rank():
        return loss
    inputs, targets = data[:]
    true = nn.functional.mse_loss(getattr(model, "module", model)(inputs), targets).item()
    wrong += not abs(float(loss) - true) <= 1e-4 * max(1e-2, true)
    evaluated.append(steps)
    return loss


def main() -> None:
    register_optimizer_step_post_hook(count)
    script.evaluate = compared
    script.train()
    if dist.get_rank() == 0:
        report(epochs_evaluated=len({4, 8, 12} & {*evaluated}), wrong_losses=wrong)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main()
    dist.destroy_process_group()
