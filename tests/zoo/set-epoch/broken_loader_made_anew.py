"""Creates sampler and loader in every epoch: each new sampler starts at epoch 0, with the same order."""

# expects: set-epoch

from contextlib import nullcontext
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


@dataclass
class Options:
    epochs: int = 3
    batch_size: int = 8
    accumulate: int = 2
    seed: int = 17


class Polynomials(Dataset):
    def __init__(self, seed: int) -> None:
        self.coefficients = torch.randn(256, 3, generator=torch.Generator().manual_seed(seed))

    def __len__(self) -> int:
        return 256

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        a, b, c = self.coefficients[index]
        return self.coefficients[index], (b * b - 4 * a * c)[None]


class Trainer:
    def __init__(self, options: Options) -> None:
        self.options = options
        self.data = Polynomials(options.seed)
        torch.manual_seed(options.seed)
        self.model = DistributedDataParallel(nn.Sequential(nn.Linear(3, 20), nn.SiLU(), nn.Linear(20, 1)))
        self.optimizer = torch.optim.RMSprop(self.model.parameters(), lr=1e-3)

    def loader(self, epoch: int) -> DataLoader:
        sampler = DistributedSampler(self.data, seed=self.options.seed)
        return DataLoader(self.data, batch_size=self.options.batch_size, sampler=sampler)

    def run(self) -> None:
        for epoch in range(self.options.epochs):
            self.train_on(self.loader(epoch))

    def train_on(self, loader: DataLoader) -> None:
        for number, (given, wanted) in enumerate(loader, start=1):
            steps = number % self.options.accumulate == 0
            with nullcontext() if steps else self.model.no_sync():
                loss = nn.functional.mse_loss(self.model(given), wanted) / self.options.accumulate
                loss.backward()
            if steps:
                self.optimizer.step()
                self.optimizer.zero_grad()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    Trainer(Options()).run()
    dist.destroy_process_group()
