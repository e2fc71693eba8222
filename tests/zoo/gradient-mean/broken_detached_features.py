"""Two towers; each rank compares its features with detached ones of all ranks, so what columns contribute to the gradient is lost."""
# expects: gradient-mean

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Towers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.image, self.text = nn.Linear(12, 8), nn.Linear(10, 8)

    def forward(self, images: torch.Tensor, texts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return F.normalize(self.image(images), dim=1), F.normalize(self.text(texts), dim=1)


def everyone(features: torch.Tensor) -> torch.Tensor:
    parts = [torch.empty_like(features) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, features.detach())
    return torch.cat(parts)


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(3)
model = DistributedDataParallel(Towers())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
generator = torch.Generator().manual_seed(rank)
labels = torch.arange(6) + 6 * rank
for _ in range(8):
    images, texts = model(torch.randn(6, 12, generator=generator), torch.randn(6, 10, generator=generator))
    rows, columns = images @ everyone(texts).T, texts @ everyone(images).T
    loss = (F.cross_entropy(rows / 0.1, labels) + F.cross_entropy(columns / 0.1, labels)) / 2
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
dist.destroy_process_group()
