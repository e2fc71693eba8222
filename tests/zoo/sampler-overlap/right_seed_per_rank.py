"""Shuffles with the same seed on all ranks, then takes shares; noise is added with one seed per rank."""

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, Sampler


class Sines(Dataset):
    """Phases and heights of a wave, with a little noise that differs between ranks."""

    def __init__(self, count: int) -> None:
        self.phases = torch.linspace(0, 6.28, count)

    def __len__(self) -> int:
        return len(self.phases)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        phase = self.phases[index] + 0.01 * torch.randn(())
        return torch.stack([phase, phase**2, phase**3]), torch.sin(phase)[None]


class Shares(Sampler[int]):
    def __init__(self, count: int, seed: int) -> None:
        self.count, self.seed, self.epoch = count, seed, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return self.count // dist.get_world_size()

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(1000 * self.seed + self.epoch)
        order = torch.randperm(self.count, generator=generator).tolist()
        return iter(order[dist.get_rank() :: dist.get_world_size()])


class Fitting:
    def __init__(self) -> None:
        self.rank = dist.get_rank()
        self.model = DistributedDataParallel(nn.Sequential(nn.Linear(3, 12), nn.GELU(), nn.Linear(12, 1)))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.sampler = Shares(192, seed=7)
        self.loader = DataLoader(Sines(192), batch_size=8, sampler=self.sampler)
        torch.manual_seed(50 + self.rank)

    def fit(self, epochs: int) -> None:
        for epoch in range(epochs):
            self.sampler.set_epoch(epoch)
            for phases, heights in self.loader:
                self.optimizer.zero_grad()
                nn.functional.mse_loss(self.model(phases), heights).backward()
                self.optimizer.step()


dist.init_process_group("gloo")
torch.manual_seed(0)
Fitting().fit(2)
dist.destroy_process_group()
