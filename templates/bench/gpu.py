"""Do these nodes see the GPUs that they were given, and how quick are a training step and an all-reduce on them?

composesim doctor --gpu and composesim bench --gpu run this on every rank. On a machine without a GPU it measures the CPU.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

DEADLINE_S = 60.0  # for a collective: NCCL itself would wait for ten minutes
DEADLINE_PER_RANK_S = 2.0  # more, since CUDA begins in one rank after another where many share a GPU
PATIENCE_S = 4.0  # for one measurement, where ranks take turns on a GPU and a step takes long


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--steps", type=int, default=30)
    options.add_argument("--megabytes", type=int, default=64, help="size of the all-reduce")
    options.add_argument("--width", type=int, default=256, help="of the model: four layers, 1 MiB of gradients at 256")
    options.add_argument("--large-width", type=int, default=1024, help="of a second one: 16 MiB of gradients at 1024")
    asked = options.parse_args()
    local_rank, on_gpu = int(os.environ["LOCAL_RANK"]), torch.cuda.is_available()
    seen = check_gpus()
    if on_gpu:
        torch.cuda.set_device(local_rank)
    device = torch.device("cuda", local_rank) if on_gpu else torch.device("cpu")
    deadline = timedelta(seconds=DEADLINE_S + DEADLINE_PER_RANK_S * int(os.environ["WORLD_SIZE"]))
    dist.init_process_group("nccl" if on_gpu else "gloo", timeout=deadline)
    everybody = torch.ones(1, device=device)
    dist.all_reduce(everybody)
    if int(everybody) != dist.get_world_size():
        sys.exit(f"an all-reduce of ones over {dist.get_world_size()} ranks gave {int(everybody)}")
    small, large = torch.ones(2, device=device), torch.ones(asked.megabytes << 18, device=device)
    latency = median_seconds(lambda: dist.all_reduce(small), asked.steps)
    transfer = median_seconds(lambda: dist.all_reduce(large), max(3, asked.steps // 3))
    step, large_step = (
        median_seconds(a_step(device, width), asked.steps) for width in (asked.width, asked.large_width)
    )
    ranks = told_by_all({"node": os.environ["COMPOSESIM_NODE"], **seen})
    if dist.get_rank() == 0:
        tell(ranks, step=step, large_step=large_step, latency=latency, transfer=transfer, size=asked.megabytes << 20)
    dist.destroy_process_group()


def check_gpus():
    """What the driver shows this process; it ends here where that is not what was planned."""
    probe = [sys.executable, f"{os.environ['COMPOSESIM_DIR']}/node/__main__.py", "gpu-probe"]
    seen = json.loads(subprocess.run(probe, stdout=subprocess.PIPE, check=True).stdout)
    planned = [uuid.partition("-")[2].lower() for uuid in os.environ.get("COMPOSESIM_GPUS", "").split(",") if uuid]
    if sorted(seen["uuids"]) != sorted(planned):
        sys.exit(f"this rank sees {seen['uuids']} where {planned} was planned: {seen['error']}")
    return {"uuids": seen["uuids"], "mps": seen["mps"]}


def told_by_all(mine):
    """What each rank has to tell, in the order of ranks; through files, since torch's own way needs numpy."""
    folder = Path(os.environ["COMPOSESIM_SHARED"], "gpu")
    folder.mkdir(exist_ok=True)
    (folder / f"{dist.get_rank()}.json").write_text(json.dumps(mine))
    dist.barrier()
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(dist.get_world_size())]


def a_step(device, width):
    """A step of DDP on a model of four layers."""
    layers = [layer for _ in range(4) for layer in (nn.Linear(width, width), nn.ReLU())]
    model = DistributedDataParallel(nn.Sequential(*layers).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batch = torch.randn(32, width, device=device)

    def step():
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()

    return step


def median_seconds(act, times):
    """The median time of an act, with all that it left to the GPU; the first few times do not count."""
    for _ in range(2):
        act()
    wait()
    begun = time.perf_counter()
    act()
    wait()
    taken = []
    for _ in range(as_often_for_all(times, time.perf_counter() - begun)):
        wait()
        begun = time.perf_counter()
        act()
        wait()
        taken.append(time.perf_counter() - begun)
    return sorted(taken)[len(taken) // 2]


def as_often_for_all(times, seconds):
    """How often all ranks are to do what takes this one so long: the slowest decides."""
    slowest = torch.tensor([seconds], device="cuda" if torch.cuda.is_available() else "cpu")
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return max(3, min(times, int(PATIENCE_S / float(slowest))))


def wait():
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def tell(ranks, *, step, large_step, latency, transfer, size):
    world = len(ranks)
    values = {
        "step": 1,
        "world_size": world,
        "step_ms": 1e3 * step,
        "large_step_ms": 1e3 * large_step,
        "latency_us": 1e6 * latency,
        "all_reduce_ms": 1e3 * transfer,
        "all_reduce_bytes": size,
        "bus_gigabytes_per_s": 2 * (world - 1) / world * size / transfer / 1e9,
        "ranks": ranks,
    }
    print(json.dumps(values), flush=True)


if __name__ == "__main__":
    main()
