"""Windows of a series are divided by hand: one rank gets eleven, the others get ten and finish first."""

# expects: uneven-inputs
# also: hang, collective-mismatch, teardown

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel as DDP


def windows(series: Tensor, size: int, rank: int, world_size: int) -> list[Tensor]:
    starts = range(0, len(series) - size, size)
    return [series[start : start + size + 1] for start in starts][rank::world_size]


def main() -> None:
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(41)
    series = torch.sin(torch.linspace(0, 60, 8 * (10 * world_size + 1) + 1))
    mine = windows(series, 8, rank, world_size)
    model = DDP(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    seen = torch.zeros(1)
    for window in mine:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(window[None, :8]), window[None, 8:]).backward()
        optimizer.step()
        seen += 1
    dist.all_reduce(seen)
    if rank == 0:
        print(f"{seen.item():.0f} windows")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
