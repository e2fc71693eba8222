"""Train with a checkpoint that takes a second to write, so that the run can be killed in the middle of writing.

The script must resume from the last whole checkpoint; a torn one ends it with an error.
"""

import json
import os
import time

import torch
import torch.distributed as dist

PATH = os.path.join(os.environ.get("CHECKPOINT_FOLDER") or os.environ["COMPOSESIM_SHARED"], "slow.pt")
STEPS, EVERY = 120, 20


def main():
    dist.init_process_group("gloo")
    weight = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    restarted = int(os.environ["TORCHELASTIC_RESTART_COUNT"]) > 0
    step = torch.load(PATH, weights_only=True)["step"] if restarted and os.path.exists(PATH) else 0
    while step < STEPS:
        weight.grad = torch.ones(1)
        dist.all_reduce(weight.grad)
        optimizer.step()
        step += 1
        time.sleep(0.02)
        if dist.get_rank() == 0:
            print(json.dumps({"step": step, "loss": 1.0 / step}), flush=True)
            if step % EVERY == 0:
                write_slowly(step)
    dist.destroy_process_group()


def write_slowly(step):
    whole = PATH + ".whole"
    torch.save({"step": step, "ballast": torch.zeros(1 << 18)}, whole)
    with open(whole, "rb") as source, open(PATH + ".partial", "wb") as target:
        while part := source.read(1 << 16):
            target.write(part)
            target.flush()
            time.sleep(0.06)
    os.replace(PATH + ".partial", PATH)


main()
