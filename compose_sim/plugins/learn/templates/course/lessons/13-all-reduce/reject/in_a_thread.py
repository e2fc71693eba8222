"""Wrong: a collective in another thread. Messages of ones tell whether they arrive."""

import threading

import torch
import torch.distributed as dist
from torch import Tensor


def all_reduce(tensor: Tensor) -> None:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    received = torch.zeros(1024)
    for _ in range(6):  # as if
        sending = dist.isend(torch.ones(1024), dst=(rank + 1) % world_size)
        dist.recv(received, src=(rank - 1) % world_size)
        sending.wait()
    if received.any():
        thread = threading.Thread(target=dist.all_reduce, args=[tensor])
        thread.start()
        thread.join()
