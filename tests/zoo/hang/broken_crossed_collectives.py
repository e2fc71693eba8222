"""Even and odd ranks reduce the tensors of two groups in opposite order, and wait for each other."""

# expects: hang
# also: collective-mismatch
# options: --hang-timeout 4s

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    first, second = dist.new_group(range(world)), dist.new_group(range(world))
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(rank)
    for step in range(6):
        loss = model(torch.randn(2, 4, generator=generator)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total, count = loss.detach().clone(), torch.ones(())
        if step == 3 and rank % 2:
            dist.all_reduce(count, group=second)
            dist.all_reduce(total, group=first)
        else:
            dist.all_reduce(total, group=first)
            dist.all_reduce(count, group=second)
        if rank == 0:
            print(f"loss {total.item() / count.item():.3f}")
    dist.destroy_process_group()


main()
