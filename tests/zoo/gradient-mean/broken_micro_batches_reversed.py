"""A pipeline by hand: the last stage goes through the micro-batches of the backward pass in the reverse order."""

# expects: gradient-mean

from collections import deque

import torch
import torch.distributed as dist
from torch import nn

COUNT, SIZE, WIDTH = 4, 8, 12


def main() -> None:
    dist.init_process_group("gloo")
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    torch.manual_seed(rank)
    stage = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())
    optimizer = torch.optim.SGD(stage.parameters(), lr=0.1)
    draws = torch.Generator().manual_seed(7)
    for _ in range(5):
        batches = torch.randn(COUNT, SIZE, WIDTH, generator=draws)
        running: deque[tuple[torch.Tensor, torch.Tensor]] = deque()
        for batch in batches:
            given = batch
            if rank > 0:
                given = torch.empty(SIZE, WIDTH)
                dist.recv(given, rank - 1)
                given.requires_grad_()
            out = stage(given)
            if rank < last:
                dist.send(out.detach(), rank + 1)
            running.append((given, (out - batch.roll(1, 1)).square().mean() / COUNT if rank == last else out))
        optimizer.zero_grad()
        while running:
            given, out = running.pop() if rank == last else running.popleft()
            gradient = None
            if rank < last:
                gradient = torch.empty(SIZE, WIDTH)
                dist.recv(gradient, rank + 1)
            out.backward(gradient)
            if rank > 0:
                dist.send(given.grad, rank - 1)
        optimizer.step()
    dist.destroy_process_group()


main()
