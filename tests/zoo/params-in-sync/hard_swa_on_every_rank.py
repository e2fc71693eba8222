"""Stochastic weight averaging: every process averages, and reports the loss of the average."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Classifier(nn.Module):
    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(features, 20), nn.ReLU())
        self.head = nn.Linear(20, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))


class Run:
    def __init__(self) -> None:
        dist.init_process_group("gloo")
        torch.manual_seed(3)
        self.is_main = os.environ["RANK"] == "0"
        inputs = torch.randn(120, 10)
        self.data = TensorDataset(inputs, inputs[:, :4].argmax(1))
        self.sampler = DistributedSampler(self.data)
        net = Classifier(10, 4)
        self.swa = AveragedModel(net)
        self.model = DistributedDataParallel(net)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)

    def epoch(self, number: int) -> None:
        self.sampler.set_epoch(number)
        for inputs, classes in DataLoader(self.data, batch_size=10, sampler=self.sampler):
            self.optimizer.zero_grad(set_to_none=True)
            nn.functional.cross_entropy(self.model(inputs), classes).backward()
            self.optimizer.step()
        self.swa.update_parameters(self.model.module)

    @torch.inference_mode()
    def report(self) -> float:
        mine = range(dist.get_rank(), len(self.data), dist.get_world_size())
        inputs, classes = (torch.stack(each) for each in zip(*(self.data[index] for index in mine)))
        loss = nn.functional.cross_entropy(self.swa(inputs), classes)
        dist.all_reduce(loss)
        return loss.item() / dist.get_world_size()


run = Run()
for number in range(3):
    run.epoch(number)
    loss = run.report()
    if run.is_main:
        print(f"{number}: {loss:.4f}")
dist.destroy_process_group()
