"""The rows of a table are dealt out; the gradients of the ranks' mean losses are added up in these, but averaged in the head."""

# expects: loss-scale, matches-single

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

ROWS, WIDTH, BATCH = 91, 4, 32


class Exchange(torch.autograd.Function):
    """Send each rank its rows; gradients go the other way."""

    @staticmethod
    def forward(ctx, rows: torch.Tensor, sent: list[int], received: list[int]) -> torch.Tensor:
        ctx.counts = received, sent
        result = rows.new_empty(sum(received), *rows.shape[1:])
        dist.all_to_all_single(result, rows.contiguous(), received, sent)
        return result

    @staticmethod
    def backward(ctx, gradient: torch.Tensor):
        return Exchange.apply(gradient, *ctx.counts), None, None


class Table(nn.Module):
    """Row i is held by rank i % world."""

    def __init__(self) -> None:
        super().__init__()
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        rows = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(1))
        self.rows = nn.Parameter(rows[self.rank :: self.world].clone())

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        order = (numbers % self.world).argsort(stable=True)
        asked = torch.bincount(numbers % self.world, minlength=self.world)
        wanted = torch.empty_like(asked)
        dist.all_to_all_single(wanted, asked)
        to_find = torch.empty(int(wanted.sum()), dtype=torch.long)
        dist.all_to_all_single(to_find, numbers[order], wanted.tolist(), asked.tolist())
        found = Exchange.apply(self.rows[to_find // self.world], wanted.tolist(), asked.tolist())
        return found[order.argsort()]


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    table, head = Table(), DistributedDataParallel(nn.Linear(WIDTH, 1))
    of_rows = torch.optim.SGD(table.parameters(), lr=2.0)
    of_head = torch.optim.SGD(head.parameters(), lr=0.1)
    draws = torch.Generator().manual_seed(2)
    for _ in range(10):
        numbers = torch.randint(ROWS, (BATCH,), generator=draws).chunk(world)[rank]
        loss = (head(table(numbers)).flatten() - (numbers % 7).float()).square().mean()
        of_rows.zero_grad()
        of_head.zero_grad()
        loss.backward()
        of_rows.step()
        of_head.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
