"""All ranks lower their learning rates together, by the validation loss over all of them."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Experiment:
    def __init__(self) -> None:
        torch.manual_seed(17)
        inputs = torch.randn(320, 4)
        targets = inputs.mean(dim=1, keepdim=True) + torch.randn(320, 1)
        self.training, self.validation = TensorDataset(inputs[:256], targets[:256]), (inputs[256:], targets[256:])
        self.model = DDP(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.3)
        self.scheduler = ReduceLROnPlateau(self.optimizer, factor=0.5, patience=0)
        self.sampler = DistributedSampler(self.training)

    def train(self, epoch: int) -> None:
        self.sampler.set_epoch(epoch)
        for inputs, targets in DataLoader(self.training, batch_size=16, sampler=self.sampler):
            self.optimizer.zero_grad()
            nn.functional.mse_loss(self.model(inputs), targets).backward()
            self.optimizer.step()

    @torch.no_grad()
    def validate(self) -> torch.Tensor:
        inputs, targets = (part[dist.get_rank() :: dist.get_world_size()] for part in self.validation)
        return nn.functional.mse_loss(self.model.module(inputs), targets)

    def run(self, epochs: int) -> None:
        for epoch in range(epochs):
            self.train(epoch)
            loss = self.validate()
            dist.all_reduce(loss)
            loss /= dist.get_world_size()
            self.scheduler.step(loss.item())
            if dist.get_rank() == 0:
                print(f"epoch {epoch}: {loss.item():.4f}")


dist.init_process_group("gloo")
Experiment().run(epochs=9)
dist.destroy_process_group()
