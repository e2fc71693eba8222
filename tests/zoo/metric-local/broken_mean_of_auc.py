"""The AUC of each block of campaigns is averaged over the ranks, and none of them compares clicks of different blocks."""

# expects: metric-local

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset


def auc(scores: torch.Tensor, clicked: torch.Tensor) -> torch.Tensor:
    wins = (scores[clicked > 0][:, None] > scores[clicked == 0][None]).double()
    return wins.mean()


def evaluate(model: nn.Module, data: TensorDataset) -> float:
    rank, world = dist.get_rank(), dist.get_world_size()
    own = Subset(data, range(rank * len(data) // world, (rank + 1) * len(data) // world))
    model.eval()
    with torch.no_grad():
        parts = [(model(inputs).flatten(), clicked) for inputs, clicked in DataLoader(own, batch_size=64)]
    model.train()
    scores, clicked = (torch.cat(each) for each in zip(*parts))
    value = auc(scores, clicked)
    dist.all_reduce(value)
    return value.item() / world


def table(rows: int, seed: int) -> TensorDataset:
    """Visits; from one campaign to the next, more of them end with a click."""
    draws = torch.Generator().manual_seed(seed)
    inputs = torch.randn(rows, 6, generator=draws)
    inputs[:, 5] = torch.linspace(-2, 2, rows)
    chance = torch.sigmoid(inputs[:, 0] + 1.5 * inputs[:, 5])
    return TensorDataset(inputs, (torch.rand(rows, generator=draws) < chance).float())


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(6, 1))
    visits, held_out = table(1024, 1), table(512, 2)
    sampler = DistributedSampler(visits)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for inputs, clicked in DataLoader(visits, batch_size=16, sampler=sampler):
            loss = nn.functional.binary_cross_entropy_with_logits(model(inputs).flatten(), clicked)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        value = evaluate(model.module, held_out)
        if dist.get_rank() == 0:
            print(f"epoch {epoch} held-out AUC {value:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
