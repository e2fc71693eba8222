"""A parameter server takes the rows of one worker and the gradients of whichever worker comes next."""

# expects: collective-mismatch

import torch
import torch.distributed as dist

ITEMS, WIDTH, BATCH, STEPS = 50, 8, 16, 20
ROWS, GRADIENTS, TABLE = 1, 2, 3


def serve(workers: int) -> None:
    table = torch.zeros(ITEMS, WIDTH)
    rows, gradients = torch.empty(BATCH, dtype=torch.long), torch.empty(BATCH, WIDTH)
    for _ in range(workers * STEPS):
        worker = dist.recv(rows, tag=ROWS)
        dist.recv(gradients, tag=GRADIENTS)
        table.index_add_(0, rows, gradients, alpha=-0.1)
        dist.send(table, worker, tag=TABLE)
    print(f"norm of the table {table.norm():.3f}")


def work(rank: int) -> None:
    numbers = torch.Generator().manual_seed(rank)
    table = torch.zeros(ITEMS, WIDTH)
    wanted = torch.randn(ITEMS, WIDTH, generator=torch.Generator().manual_seed(0))
    for _ in range(STEPS):
        rows = torch.randint(0, ITEMS, (BATCH,), generator=numbers)
        parts = [dist.isend(rows, 0, tag=ROWS)]
        own = table[rows].requires_grad_()
        (own - wanted[rows]).square().sum().backward()
        parts.append(dist.isend(own.grad, 0, tag=GRADIENTS))
        dist.recv(table, 0, tag=TABLE)
        for part in parts:
            part.wait()


dist.init_process_group("gloo")
if dist.get_rank() == 0:
    serve(dist.get_world_size() - 1)
else:
    work(dist.get_rank())
dist.destroy_process_group()
