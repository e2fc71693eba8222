"""Contrasts with the samples of all ranks, its own first: the partners have the same places on every rank."""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.nn.functional import all_gather
from torch.nn.parallel import DistributedDataParallel


class Pair(nn.Module):
    """Two views of one thing, mapped to unit vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(6, 8), nn.Linear(5, 8)

    def forward(self, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        return nn.functional.normalize(self.left(left), dim=1), nn.functional.normalize(self.right(right), dim=1)


def contrast(left: Tensor, right: Tensor) -> Tensor:
    """Tell each left view's partner from the right views of all ranks."""
    rank = dist.get_rank()
    everywhere = list(all_gather(right))
    scores = 5 * left @ torch.cat([everywhere[rank], *everywhere[:rank], *everywhere[rank + 1 :]]).T
    partners = torch.arange(len(left))
    return nn.functional.cross_entropy(scores, partners)


dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(Pair())
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
source = torch.Generator().manual_seed(dist.get_rank())
for _ in range(40):
    mine = torch.randn(8, 5, generator=source)
    left = torch.cat([mine, mine.sum(1, keepdim=True)], dim=1)
    loss = contrast(*model(left, mine.flip(1)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
dist.destroy_process_group()
