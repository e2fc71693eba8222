"""Contrasts the two views of all ranks' samples, but gathers both at once: the halves of the whole are not the views."""

# expects: matches-single

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.nn.functional import all_gather
from torch.nn.parallel import DistributedDataParallel

BATCH, WIDTH = 12, 24


def contrast(views: Tensor) -> Tensor:
    """Return the loss of telling each view's partner from all other views."""
    gathered = torch.cat(all_gather(views))
    count = len(gathered)
    scores = (gathered @ gathered.T / 0.2).masked_fill(torch.eye(count, dtype=torch.bool), float("-inf"))
    return nn.functional.cross_entropy(scores, (torch.arange(count) + count // 2) % count)


dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(WIDTH, 32), nn.ReLU(), nn.Linear(32, 12)))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
source = torch.Generator().manual_seed(dist.get_rank())
for _ in range(20):
    seen = torch.randn(BATCH, WIDTH, generator=source)
    first, second = (seen + 0.2 * torch.randn(BATCH, WIDTH, generator=source) for _ in range(2))
    loss = contrast(nn.functional.normalize(model(torch.cat([first, second])), dim=1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
dist.destroy_process_group()
