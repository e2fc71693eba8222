"""Trains with drop_last in an order that changes with each epoch: the samples left out change too."""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Table(Dataset):
    def __init__(self, rows: int) -> None:
        generator = torch.Generator().manual_seed(30)
        self.columns = {name: torch.rand(rows, generator=generator) for name in ("age", "dose", "effect")}

    def __len__(self) -> int:
        return len(self.columns["age"])

    def __getitem__(self, row: int) -> dict[str, Tensor]:
        return {name: column[row] for name, column in self.columns.items()}


class Effect(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 1))

    def forward(self, age: Tensor, dose: Tensor) -> Tensor:
        return self.layers(torch.stack([age, dose], dim=1)).squeeze(1)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    table = Table(139)
    sampler = DistributedSampler(table, shuffle=True, drop_last=True)
    loader = DataLoader(table, batch_size=8, sampler=sampler, drop_last=True)
    model = DDP(Effect())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for rows in loader:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(rows["age"], rows["dose"]), rows["effect"]).backward()
            optimizer.step()
    dist.destroy_process_group()
