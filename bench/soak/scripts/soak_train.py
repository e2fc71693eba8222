"""Run a small training that resumes from its checkpoint, and number every line that it prints.

It ends when the file `enough` is in the shared folder and every rank knows that. A line is `line K of GENERATION`; rank 0 also
prints metrics. If a number is missing between two lines of one rank, a line was lost.
"""

import json
import os
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

CHECKPOINT = os.path.join(os.environ["COMPOSESIM_SHARED"], "soak.pt")
EVERY = 5


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(32, 32))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    step = resume(model.module)
    generation, lines = os.environ["TORCHELASTIC_RESTART_COUNT"], 0
    target = torch.randn(64, 32)
    while not all_know_that_it_is_over():
        loss = (model(torch.eye(32).repeat(2, 1)) - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        lines += 1
        print(f"line {lines} of {generation}", flush=True)
        if dist.get_rank() == 0:
            if step % EVERY == 0:
                save(model.module, step)
            print(json.dumps({"step": step, "loss": loss.item()}), flush=True)
        time.sleep(0.02)
    dist.destroy_process_group()


def all_know_that_it_is_over():
    over = torch.tensor(float(os.path.exists(os.path.join(os.environ["COMPOSESIM_SHARED"], "enough"))))
    dist.broadcast(over, src=0)
    return bool(over)


def resume(model):
    """Return the step of the checkpoint; every rank reads the same one, which rank 0 chooses."""
    step = torch.zeros(1, dtype=torch.int64)
    if dist.get_rank() == 0 and os.path.exists(CHECKPOINT):
        try:
            state = torch.load(CHECKPOINT, weights_only=True)
        except Exception as error:  # noqa: BLE001 - broken on purpose, in any way: start the training again
            print(f"checkpoint cannot be read: {type(error).__name__}", flush=True)
        else:
            model.load_state_dict(state["model"])
            step[0] = state["step"]
    dist.broadcast(step, src=0)
    for parameter in model.parameters():
        dist.broadcast(parameter.data, src=0)
    return int(step)


def save(model, step):
    partial = CHECKPOINT + ".partial"
    torch.save({"model": model.state_dict(), "step": step}, partial)
    os.replace(partial, CHECKPOINT)


main()
