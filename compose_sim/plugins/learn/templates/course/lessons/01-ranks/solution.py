"""Add up the numbers from 1 to 1000: each rank adds its share, then all ranks add their sums."""

import json

import torch
import torch.distributed as dist


def main() -> None:
    dist.init_process_group("gloo")  # the rendezvous: every rank waits here until all of them have come
    rank = dist.get_rank()
    world_size = dist.get_world_size()

    share = torch.arange(1, 1001)[rank::world_size]
    total = share.sum()
    dist.all_reduce(total)  # now every rank has the sum of all shares

    prints = torch.tensor(int(rank == 0))
    dist.all_reduce(prints)  # how many ranks are about to print
    if rank == 0:
        print(json.dumps({"step": 1, "total": total.item(), "ranks_that_print": prints.item()}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
