"""Each rank holds a part of a table and sends rows to those who ask, by an all_to_all_single that has no gradient."""

# expects: gradient-mean

import torch
import torch.distributed as dist
from torch import nn

WORDS, WIDTH, ASKED = 40, 8, 12  # ASKED of each rank


def exchange(rows):
    received = torch.empty_like(rows)
    dist.all_to_all_single(received, rows)
    return received


class Table(nn.Module):
    """Word w is row w // world_size of rank w % world_size."""

    def __init__(self):
        super().__init__()
        self.rows = nn.Parameter(torch.randn(WORDS // dist.get_world_size(), WIDTH) * 0.1)

    def forward(self, words):
        asked = torch.empty_like(words)
        dist.all_to_all_single(asked, words)
        return exchange(self.rows[asked // dist.get_world_size()])


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(70 + rank)
    table = Table()
    torch.manual_seed(7)
    head = nn.Linear(WIDTH, 2)
    optimizer = torch.optim.SGD([*table.parameters(), *head.parameters()], lr=0.5)
    generator = torch.Generator().manual_seed(90 + rank)
    for step in range(10):
        numbers = torch.randint(WORDS // world, (world, ASKED), generator=generator)
        words = (numbers * world + torch.arange(world)[:, None]).flatten()
        loss = nn.functional.cross_entropy(head(table(words)), (words > WORDS // 2).long())
        optimizer.zero_grad()
        loss.backward()
        for each in head.parameters():
            dist.all_reduce(each.grad)
            each.grad /= world
        if table.rows.grad is not None:
            table.rows.grad /= world
        optimizer.step()
        if rank == 0 and step % 5 == 0:
            print(f"step {step}: {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
