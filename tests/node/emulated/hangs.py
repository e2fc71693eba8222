"""Train for 20 steps, and hang at step 12 in the way that the argument names, or compute for 40 seconds."""

import ctypes
import os
import signal
import sys
import threading
import time

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader


class Samples:
    def __len__(self):
        return 100

    def __getitem__(self, index):
        if index == 96 and kind == "loads" and rank == 1:
            time.sleep(600)  # loads
        return torch.full((64,), float(index))


def compute(seconds, every):
    """Multiply matrices for so long; wait for the GPU after each `every` products."""
    data, until = torch.rand(8192, 8192, device="cuda"), time.monotonic() + seconds
    while time.monotonic() < until:
        for _ in range(every):
            data = (data @ data).sigmoid()
        torch.cuda.synchronize()


kind, rank = sys.argv[1], int(os.environ["RANK"])
torch.cuda.set_device(0)
dist.init_process_group("nccl")
first, second = dist.new_group([0, 1]), dist.new_group([0, 1])
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64).cuda(), device_ids=[0])
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
one = torch.ones(4, device="cuda")
for step, batch in enumerate(DataLoader(Samples(), batch_size=5, num_workers=int(kind == "loads"))):
    odd = step == 12 and rank == 1
    if odd and kind == "sleeps":
        time.sleep(600)  # sleeps
    if odd and kind == "leaves":
        break
    if odd and kind == "stops":
        os.kill(os.getpid(), signal.SIGSTOP)  # stops
    if odd and kind == "holds":
        ctypes.PyDLL(None).sleep(600)  # holds
    if odd and kind == "computes":
        compute(40, every=1)
    if odd and kind == "queues":
        compute(40, every=1200)  # about 20 s of work in the queue
    if step == 12 and kind == "evaluates":
        if rank == 0:
            compute(40, every=10)
        dist.barrier()
    loss = model(batch.cuda()).sum()
    loss.backward()
    optimizer.step()
    if step == 12 and kind == "differs":
        dist.broadcast(one, 0) if rank else dist.all_reduce(one)  # differs
    if step == 12 and kind == "sends" and rank == 0:
        dist.send(one, 1)  # sends
    if step % 5 == 4 and kind == "adds" and rank == 0:
        dist.all_reduce(one)  # adds
    if step == 12 and kind == "misses" and rank == 0:
        dist.barrier()  # misses
    if step == 12 and kind == "crosses":
        for group in (first, second) if rank else (second, first):
            dist.all_reduce(one, group=group)
            torch.cuda.synchronize()
    loss.item()
if kind == "destroys" and rank == 1:
    dist.all_reduce(one)  # destroys
if kind == "stays" and rank == 1:
    threading.Thread(target=time.sleep, args=(600,)).start()
print("done", flush=True)
dist.destroy_process_group()
