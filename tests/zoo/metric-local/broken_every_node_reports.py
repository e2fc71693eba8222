"""LOCAL_RANK is used instead of RANK: every node prints the log, so 16 nodes print it 16 times."""

# ranks per node: 2
# expects: metric-local

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Trainer:
    def __init__(self, network: nn.Module, data: TensorDataset) -> None:
        self.is_main = int(os.environ["LOCAL_RANK"]) == 0
        self.network = nn.parallel.DistributedDataParallel(network)
        self.optimizer = torch.optim.RMSprop(self.network.parameters(), lr=1e-3)
        self.sampler = DistributedSampler(data)
        self.loader = DataLoader(data, batch_size=10, sampler=self.sampler)

    def mean(self, value: torch.Tensor) -> float:
        value = value.detach().clone()
        dist.all_reduce(value)
        return value.item() / dist.get_world_size()

    def log(self, **values: float) -> None:
        if self.is_main:
            print(" | ".join(f"{name} {value:.5g}" for name, value in values.items()))

    def fit(self, epochs: int) -> None:
        for epoch in range(epochs):
            self.sampler.set_epoch(epoch)
            for inputs, labels in self.loader:
                loss = nn.functional.binary_cross_entropy_with_logits(self.network(inputs)[:, 0], labels)
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
            self.log(epoch=epoch, loss=self.mean(loss))


if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.manual_seed(3)
    inputs = torch.randn(240, 6)
    trainer = Trainer(
        nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 1)), TensorDataset(inputs, (inputs.sum(1) > 0).float())
    )
    trainer.fit(3)
    dist.destroy_process_group()
