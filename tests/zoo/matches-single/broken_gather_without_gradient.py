"""A contrastive loss over all ranks' embeddings. all_gather returns no gradient, so other ranks' are constants."""

# expects: matches-single
# also: gradient-mean

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy, normalize
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def everybodys(embeddings: torch.Tensor) -> torch.Tensor:
    gathered = [torch.empty_like(embeddings) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, embeddings)
    gathered[dist.get_rank()] = embeddings
    return torch.cat(gathered)


def contrast(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Contrast each embedding of this rank with the other views of all ranks."""
    own = torch.arange(len(left)) + dist.get_rank() * len(left)
    return (
        cross_entropy(left @ everybodys(right).T / 0.2, own) + cross_entropy(right @ everybodys(left).T / 0.2, own)
    ) / 2


def main() -> None:
    torch.manual_seed(0)
    hidden = torch.randn(256, 4)
    data = TensorDataset(hidden @ torch.randn(4, 10), hidden @ torch.randn(4, 14))
    sampler = DistributedSampler(data, seed=1)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    towers = nn.ModuleDict({"left": nn.Linear(10, 8), "right": nn.Linear(14, 8)})

    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.towers = towers

        def forward(self, left: torch.Tensor, right: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return normalize(self.towers["left"](left), dim=1), normalize(self.towers["right"](right), dim=1)

    model = DistributedDataParallel(Pair())
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for left, right in loader:
            loss = contrast(*model(left, right))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main()
    dist.destroy_process_group()
