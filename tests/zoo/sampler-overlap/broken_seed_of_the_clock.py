"""The sampler's seed is read from the clock in each process, so that ranks shuffle differently."""

# expects: sampler-overlap

import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


@dataclass
class TrainingArguments:
    per_device_train_batch_size: int = 4
    num_train_epochs: int = 2
    data_seed: int | None = None

    def __post_init__(self):
        if self.data_seed is None:
            self.data_seed = time.time_ns() % 2**31


class Trainer:
    def __init__(self, model, args, train_dataset):
        self.args = args
        self.model = DistributedDataParallel(model)
        self.sampler = DistributedSampler(train_dataset, seed=args.data_seed)
        self.loader = DataLoader(train_dataset, args.per_device_train_batch_size, sampler=self.sampler)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-3)

    def train(self):
        for epoch in range(self.args.num_train_epochs):
            self.sampler.set_epoch(epoch)
            for x, y in self.loader:
                self.optimizer.zero_grad()
                nn.functional.cross_entropy(self.model(x), y).backward()
                self.optimizer.step()


dist.init_process_group("gloo")
torch.manual_seed(1)
data = TensorDataset(torch.randn(64, 10), torch.randint(0, 3, (64,)))
Trainer(nn.Sequential(nn.Linear(10, 10), nn.ReLU(), nn.Linear(10, 3)), TrainingArguments(), data).train()
dist.destroy_process_group()
