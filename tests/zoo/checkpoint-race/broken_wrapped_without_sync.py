"""All ranks load the last checkpoint before they wrap the model, but DDP's constructor is told to wait for none of them."""

# expects: checkpoint-race

from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

LAST = Path("last.pt")


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(4)
    network = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1))
    if dist.get_rank() == 0 and not LAST.exists():
        torch.save(network.state_dict(), LAST)
    dist.barrier()
    network.load_state_dict(torch.load(LAST))
    wrapped = DistributedDataParallel(network, init_sync=False)
    if dist.get_rank() == 0:
        torch.save(network.state_dict(), LAST)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.02)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(3):
        features = torch.randn(16, 5, generator=generator)
        optimizer.zero_grad()
        nn.functional.mse_loss(wrapped(features), features.sum(1, keepdim=True)).backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
