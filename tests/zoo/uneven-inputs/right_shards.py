"""Whole files are assigned to ranks, so rank 0 has one more batch: join() shadows the ranks that have finished."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import ConcatDataset, DataLoader, TensorDataset


def read(number: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(number)
    return TensorDataset(torch.randn(8, 3, generator=generator), torch.randn(8, 1, generator=generator))


def main() -> None:
    dist.init_process_group("gloo")
    files = range(13)
    mine = ConcatDataset([read(number) for number in files[dist.get_rank() :: dist.get_world_size()]])
    loader = DataLoader(mine, batch_size=8)
    torch.manual_seed(0)
    model = DDP(nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with model.join():
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
    print(f"rank {dist.get_rank()} has trained", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
