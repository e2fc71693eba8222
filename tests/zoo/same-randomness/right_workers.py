"""Augments in workers, and the rank's generator is seeded by rank: crops differ between ranks."""

import random

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Pictures(Dataset):
    def __init__(self, count: int, size: int) -> None:
        self.pictures = torch.rand(count, 3, size, size, generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        picture = self.pictures[index]
        if random.random() < 0.5:
            picture = picture.flip(-1)
        top, left = random.randrange(3), random.randrange(3)
        return picture[:, top : top + 6, left : left + 6], int(picture.mean() > 0.5)


def seed_everything(seed: int) -> None:
    random.seed(seed)
    torch.manual_seed(seed)


def main() -> None:
    dist.init_process_group("gloo")
    seed_everything(2024)
    model = DistributedDataParallel(nn.Sequential(nn.Conv2d(3, 5, 3), nn.ReLU(), nn.Flatten(), nn.Linear(80, 2)))
    seed_everything(2024 + dist.get_rank())
    pictures = Pictures(96, 8)
    sampler = DistributedSampler(pictures)
    loader = DataLoader(pictures, batch_size=6, sampler=sampler, num_workers=2)
    optimizer = torch.optim.Adam(model.parameters())
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for crops, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(crops), labels).backward()
            optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
