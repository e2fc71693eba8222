"""Every rank loads the same batches in the same order and trains on its slice of each: wasteful, but right."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(5)
    data = TensorDataset(torch.randn(128, 7), torch.randn(128, 2))
    model = DDP(nn.Sequential(nn.Linear(7, 9), nn.ReLU(), nn.Linear(9, 2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    order = torch.Generator().manual_seed(77)  # the same on all ranks, which must agree on each batch
    for _epoch in range(2):
        for x, y in DataLoader(data, batch_size=32, shuffle=True, generator=order):
            x, y = x[rank::world_size], y[rank::world_size]
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
    dist.destroy_process_group()


main()
