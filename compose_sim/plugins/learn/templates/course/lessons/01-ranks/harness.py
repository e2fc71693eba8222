"""Let the ranks of script.py add up the numbers from 1 to 1000 and others, and measure how they share the work."""

import torch
import torch.distributed as dist
from measure import report, report_share
from script import add_up, is_first

COUNT, DRAWN = 1000, 26  # numbers


def main() -> None:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    prints = torch.tensor(int(bool(is_first())))
    dist.all_reduce(prints)
    total = int(add_up(torch.arange(1, COUNT + 1)))
    if is_first():
        print(f"rank {rank}: the total is {total:,}", flush=True)

    others = torch.randint(0, 1000, (997,), generator=torch.Generator().manual_seed(7))
    wrong = torch.tensor(int(int(add_up(others.clone())) != int(others.sum())))
    dist.all_reduce(wrong)
    # If the numbers are ones on a single rank and zeros elsewhere, the sum is the size of the share of that rank.
    shares = [int(add_up(torch.full((COUNT,), int(rank == owner)))) for owner in range(world_size)]
    if rank == 0:
        report(total=total, ranks_that_print=prints.item(), wrong_totals=wrong.item())
    report(smallest_share=min(shares), largest_share=max(shares))
    draw(rank)


def draw(rank: int) -> None:
    """Report which numbers this rank adds: with a number that is 0 everywhere but at one position, and there a power of 16."""
    totals = [int(add_up(torch.zeros(DRAWN, dtype=torch.long)))]
    for position in range(DRAWN):
        numbers = torch.zeros(DRAWN, dtype=torch.long)
        numbers[position] = 16**rank
        totals.append(int(add_up(numbers)))
    if totals[0] == 0:  # else the total does not depend on the numbers alone
        times = [total // 16**rank % 16 for total in totals[1:]]  # that this rank adds them
        report_share("adds number", DRAWN, (position for position in range(DRAWN) for _ in range(times[position])))


if __name__ == "__main__":
    dist.init_process_group("gloo")  # the rendezvous: every rank waits here until all of them have come
    main()
    dist.destroy_process_group()
