"""The trainer divides the loss by the world size, as if gradients were summed. DDP has already averaged them."""

# expects: loss-scale
# also: matches-single

import contextlib
import os

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Trainer:
    accumulate = 2

    def __init__(self, model: torch.nn.Module, data: TensorDataset) -> None:
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self.model = DistributedDataParallel(model)
        self.sampler = DistributedSampler(data, self.world_size, self.rank, seed=5)
        self.loader = DataLoader(data, 4, sampler=self.sampler)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return cross_entropy(self.model(x), y) / self.world_size / self.accumulate

    def epoch(self, number: int) -> None:
        self.sampler.set_epoch(number)
        for index, (x, y) in enumerate(self.loader, start=1):
            full = index % self.accumulate == 0
            with contextlib.nullcontext() if full else self.model.no_sync():
                self.loss(x, y).backward()
            if full:
                self.optimizer.step()
                self.optimizer.zero_grad()


def train() -> None:
    torch.manual_seed(0)
    x = torch.randn(256, 10)
    data = TensorDataset(x, (x[:, :3].sum(1) > 0).long())
    trainer = Trainer(torch.nn.Sequential(torch.nn.Linear(10, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2)), data)
    for number in range(2):
        trainer.epoch(number)
    if os.environ["RANK"] == "0":
        print("done")


if __name__ == "__main__":
    dist.init_process_group("gloo")
    train()
    dist.destroy_process_group()
