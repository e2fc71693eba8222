"""The optimizer step gets a closure that computes the second half of the gradients, as some trainers do."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Fit:
    def __init__(self, by_name: bool) -> None:
        torch.manual_seed(1)
        self.by_name = by_name
        self.model = DistributedDataParallel(nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3)))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def backward(self, batch: list[torch.Tensor]) -> torch.Tensor:
        loss = nn.functional.cross_entropy(self.model(batch[0]), batch[1]) / 2
        loss.backward()
        return loss

    def epoch(self, loader: DataLoader) -> None:
        for number, batch in enumerate(loader):
            if number % 2 == 0:
                self.optimizer.zero_grad()
                with self.model.no_sync():
                    self.backward(batch)
            elif self.by_name:
                self.optimizer.step(closure=lambda batch=batch: self.backward(batch))
            else:
                self.optimizer.step(lambda batch=batch: self.backward(batch))


def main() -> None:
    points = torch.randn(128, 6, generator=torch.Generator().manual_seed(3))
    data = TensorDataset(points, points[:, :3].argmax(1))
    sampler = DistributedSampler(data)
    for by_name in (True, False):
        fit = Fit(by_name)
        for epoch in range(2):
            sampler.set_epoch(epoch)
            fit.epoch(DataLoader(data, batch_size=4, sampler=sampler))


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main()
    dist.destroy_process_group()
