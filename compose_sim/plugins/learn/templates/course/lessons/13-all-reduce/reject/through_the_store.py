"""Wrong: the sum goes through the store of the process group. Messages of ones tell whether they arrive."""

import pickle

import torch
import torch.distributed as dist
from torch import Tensor

calls = 0


def all_reduce(tensor: Tensor) -> None:
    global calls
    calls += 1
    rank, world_size = dist.get_rank(), dist.get_world_size()
    store, received = dist.distributed_c10d._get_default_store(), torch.zeros(1024)
    store.set(f"{calls}-{rank}", pickle.dumps(tensor.tolist()))
    for _ in range(6):  # as if
        sending = dist.isend(torch.ones(1024), dst=(rank + 1) % world_size)
        dist.recv(received, src=(rank - 1) % world_size)
        sending.wait()
    if received.any():
        tensor.copy_(sum(torch.tensor(pickle.loads(store.get(f"{calls}-{other}"))) for other in range(world_size)))
