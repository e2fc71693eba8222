"""Wraps the model once and calls the wrapper in every step."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main(steps: int = 12) -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(3)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(7, 20), nn.Tanh(), nn.Linear(20, 3)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    source = torch.Generator().manual_seed(50 + dist.get_rank())
    for _ in range(steps):
        x = torch.randn(12, 7, generator=source)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), x[:, :3]).backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
