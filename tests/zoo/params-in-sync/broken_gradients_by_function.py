"""Gradients come from torch.autograd.grad, and no backward pass lets DistributedDataParallel reduce them."""

# expects: params-in-sync
# options: --nproc-per-node 1

import math

import torch
import torch.distributed as dist
from torch import autograd, nn


def make_task(gen):
    amplitude, phase = 1 + 4 * torch.rand(1, generator=gen), math.pi * torch.rand(1, generator=gen)
    x = 10 * torch.rand(20, 1, generator=gen) - 5
    return x, amplitude * torch.sin(x + phase)


def run(rank):
    torch.manual_seed(0)
    learner = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(1, 32), nn.ReLU(), nn.Linear(32, 1)))
    meta = torch.optim.Adam(learner.parameters(), lr=1e-2)
    tasks = torch.Generator().manual_seed(100 + rank)
    for _ in range(12):
        x, y = make_task(tasks)
        loss = nn.functional.mse_loss(learner(x), y)
        grads = autograd.grad(loss, list(learner.parameters()))
        for p, g in zip(learner.parameters(), grads):
            p.grad = g
        meta.step()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    run(dist.get_rank())
    dist.destroy_process_group()
