"""Wraps the model anew in every other step and calls it bare in between: each new wrapper hides that the ranks had come apart."""
# expects: params-in-sync

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def maybe_parallel(network: nn.Module, step: int) -> nn.Module:
    return DistributedDataParallel(network) if step % 2 else network


def main(steps: int = 12) -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(3)
    network = nn.Sequential(nn.Linear(7, 20), nn.Tanh(), nn.Linear(20, 3))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05)
    source = torch.Generator().manual_seed(50 + dist.get_rank())
    for step in range(steps):
        x = torch.randn(12, 7, generator=source)
        loss = nn.functional.mse_loss(maybe_parallel(network, step)(x), x[:, :3])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
