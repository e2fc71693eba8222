"""Train with script.py through failures, then once more without any, and compare the parameters at the end."""

import io
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
DIED = SHARED / ".died-while-saving"
DIES_AFTER = 18
steps = 0
is_over = False  # whether no more failures come


def count(*_) -> None:
    """Count the steps, and let node-1 die after the 18th step."""
    global steps
    steps += 1
    if steps == DIES_AFTER:
        wait_for_the_fault(steps)


def parameters(model: nn.Module) -> Tensor:
    return torch.cat([each.detach().flatten().clone() for each in model.parameters()])


def loss_of(model: nn.Module) -> float:
    inputs = torch.rand(512, 16, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        return nn.functional.mse_loss(model(inputs), inputs.sum(1, keepdim=True)).item()


def die_while_saving() -> None:
    """Let rank 0 die in its third save after the restart, with half of the file written."""
    save, saves = torch.save, 0

    def half(state, file, *args, **kwargs):
        nonlocal saves
        saves += steps > 0  # what is broadcast as an object before the first step is saved into a buffer
        if saves < 3 or is_over or DIED.exists():
            return save(state, file, *args, **kwargs)
        buffer = io.BytesIO()
        save(state, buffer, *args, **kwargs)
        text = buffer.getvalue()[: buffer.tell() // 2]
        DIED.write_text(str(steps))
        if hasattr(file, "write"):
            file.write(text)
            file.flush()
        else:
            Path(file).write_bytes(text)
        os._exit(3)

    torch.save = half


def main() -> None:
    global is_over
    register_optimizer_step_post_hook(count)
    if dist.get_rank() == 0 and os.environ["TORCHELASTIC_RESTART_COUNT"] != "0":
        die_while_saving()
    from script import train  # after torch.save was replaced

    model = train()
    end, loss = parameters(model), loss_of(model)
    after_restart = steps
    dist.barrier()
    died = DIED.exists()
    made = int(DIED.read_text()) if died else 0  # between both restarts
    dist.barrier()
    if dist.get_rank() == 0:
        for each in filter(Path.is_file, [*SHARED.rglob("*")]):
            each.unlink()
    dist.barrier()
    is_over = True
    time.sleep = lambda _: None
    with redirect_stdout(None):
        other = parameters(train())
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "2":  # with another restart, nobody knows how many were made in all
        report(steps_repeated=DIES_AFTER + made + after_restart - (steps - after_restart))
    report(
        steps_after_restart=after_restart,
        steps_without_checkpoint=steps - after_restart,
        end_differs=(end - other).abs().max().item(),
        died_while_saving=int(died),
        loss_at_the_end=loss,
    )


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main()
    dist.destroy_process_group()
