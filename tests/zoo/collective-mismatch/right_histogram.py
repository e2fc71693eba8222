"""All ranks sum histograms with the same number of bins, including classes that they have not seen."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


class Skewed(Dataset):
    """Samples sorted by class, so the last batches of each rank hold different classes."""

    def __init__(self, size: int) -> None:
        generator = torch.Generator().manual_seed(11)
        self.labels = torch.arange(size) * 10 // size
        self.features = torch.randn(size, 16, generator=generator) + self.labels[:, None] / 5

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.features[index], self.labels[index]


class Trainer:
    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = DDP(torch.nn.Linear(16, 10))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        data = Skewed(320)
        self.sampler = DistributedSampler(data, shuffle=True)
        self.loader = DataLoader(data, batch_size=4, sampler=self.sampler)

    def epoch(self, number: int) -> torch.Tensor:
        self.sampler.set_epoch(number)
        seen: list[torch.Tensor] = []
        for features, labels in self.loader:
            loss = F.cross_entropy(self.model(features), labels)
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            self.optimizer.step()
            seen.append(labels[labels % (dist.get_rank() + 2) == 0])
        counts = torch.bincount(torch.cat(seen), minlength=10)
        dist.all_reduce(counts)
        return counts


if __name__ == "__main__":
    dist.init_process_group("gloo")
    trainer = Trainer()
    for number in range(2):
        counts = trainer.epoch(number)
        if dist.get_rank() == 0:
            print("classes seen", counts.tolist())
    dist.destroy_process_group()
