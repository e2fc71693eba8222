"""A logger thread and the training loop take two locks in opposite order; on rank 3 they deadlock."""

# expects: hang
# options: --hang-timeout 4s

import threading

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

metrics_lock = threading.Lock()
file_lock = threading.Lock()
log_holds_file = threading.Event()
train_holds_metrics = threading.Event()


def write_log() -> None:
    with file_lock:
        log_holds_file.set()
        train_holds_metrics.wait()
        with metrics_lock:
            pass


def record(loss: float) -> None:
    with metrics_lock:
        train_holds_metrics.set()
        log_holds_file.wait()
        with file_lock:
            pass


def train() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DistributedDataParallel(torch.nn.Linear(3, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.Generator().manual_seed(rank)
    for step in range(10):
        optimizer.zero_grad()
        loss = model(torch.randn(2, 3, generator=data)).pow(2).mean()
        loss.backward()
        optimizer.step()
        if step == 3 and rank == 3:
            threading.Thread(target=write_log, daemon=True).start()
            record(loss.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    train()
