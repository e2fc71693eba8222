"""A logger thread and the training loop take two locks in the same order, so neither waits for long."""

# options: --hang-timeout 4s

import threading

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

metrics_lock = threading.Lock()
file_lock = threading.Lock()
written: list[float] = []


def record(loss: float) -> None:
    with metrics_lock, file_lock:
        written.append(loss)


def train() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DistributedDataParallel(torch.nn.Linear(3, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.Generator().manual_seed(rank)
    for _ in range(10):
        optimizer.zero_grad()
        loss = model(torch.randn(2, 3, generator=data)).pow(2).mean()
        loss.backward()
        optimizer.step()
        logger = threading.Thread(target=record, args=(loss.item(),), daemon=True)
        logger.start()
        record(loss.item())
        logger.join()
    dist.destroy_process_group()


if __name__ == "__main__":
    train()
