"""Correct calls that only some ranks make: a group of two, lists on the root, messages, sizes exchanged before they differ."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def varying_gather(values: torch.Tensor) -> list[torch.Tensor]:
    """Gather the values of all ranks, which have different numbers of them."""
    world = dist.get_world_size()
    sizes = [torch.zeros(1, dtype=torch.long) for _ in range(world)]
    dist.all_gather(sizes, torch.tensor([len(values)]))
    padded = torch.zeros(int(max(sizes)))
    padded[: len(values)] = values
    parts = [torch.zeros_like(padded) for _ in range(world)]
    dist.all_gather(parts, padded)
    return [part[: int(size)] for part, size in zip(parts, sizes, strict=True)]


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    pairs = [dist.new_group([first, first + 1]) for first in range(0, world, 2)]
    mine = pairs[rank // 2]
    torch.manual_seed(0)
    model = DDP(torch.nn.Linear(5, 5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(rank)
    for step in range(12):
        features = torch.randn(8, 5, generator=generator)
        loss = (model(features) - features.flip(1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        pair = loss.detach().clone()
        work = dist.all_reduce(pair, group=mine, async_op=True)
        if rank < 2:  # a second reduction in the first group alone
            work.wait()
            dist.all_reduce(pair, group=mine)
        else:
            work.wait()
        gathered = [torch.zeros(()) for _ in range(world)] if rank == 0 else None
        dist.gather(loss.detach(), gathered, dst=0)
        if gathered and step % 5 == 0:
            print(f"step {step} mean loss {torch.stack(gathered).mean():.4f}")
    share = torch.zeros(3)
    dist.scatter(share, [torch.full((3,), float(to)) for to in range(world)] if rank == 0 else None, src=0)
    if rank == 0:
        dist.send(share, dst=world - 1)
    elif rank == world - 1:
        dist.recv(share, src=0)
    lengths = [len(part) for part in varying_gather(torch.ones(rank + 1))]
    assert lengths == list(range(1, world + 1)), lengths
    # The root knows the value, the others only the size: a scalar and a tensor of one element are sent alike.
    best = torch.tensor(float(step)) if rank == 0 else torch.empty(1)
    dist.broadcast(best, src=0)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
