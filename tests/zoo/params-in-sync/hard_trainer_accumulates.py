"""A trainer with hooks and a module, accumulating over two batches and skipping the reduction on the first."""

import contextlib

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Module(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(12, 16)
        self.head = nn.Linear(16, 1)

    def forward(self, batch):
        return self.training_step(batch)

    def training_step(self, batch):
        x, y = batch
        return nn.functional.mse_loss(self.head(self.encoder(x).tanh()).squeeze(-1), y)

    def validation_step(self, batch):
        return self.training_step(batch)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        return optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)


class Trainer:
    def __init__(self, max_epochs=2, accumulate_grad_batches=2):
        self.max_epochs, self.accumulate = max_epochs, accumulate_grad_batches
        dist.init_process_group("gloo")

    def fit(self, module, train, val):
        optimizer, scheduler = module.configure_optimizers()
        strategy = DistributedDataParallel(module)
        sampler = DistributedSampler(train, shuffle=True)
        loader = DataLoader(train, 4, sampler=sampler)
        val_loader = DataLoader(val, 4, sampler=DistributedSampler(val, shuffle=False))
        for epoch in range(self.max_epochs):
            sampler.set_epoch(epoch)
            strategy.train()
            for index, batch in enumerate(loader):
                last = (index + 1) % self.accumulate == 0 or index + 1 == len(loader)
                with contextlib.nullcontext() if last else strategy.no_sync():
                    (strategy(batch) / self.accumulate).backward()
                if last:
                    nn.utils.clip_grad_norm_(module.parameters(), 1.0)
                    optimizer.step()
                    optimizer.zero_grad()
            scheduler.step()
            self.validate(strategy, val_loader, epoch)
        dist.destroy_process_group()

    @torch.no_grad()
    def validate(self, strategy, loader, epoch):
        strategy.eval()
        losses = torch.stack([strategy.module.validation_step(b) for b in loader])
        mean = losses.mean()
        dist.all_reduce(mean)
        mean /= dist.get_world_size()
        if dist.get_rank() == 0:
            print(f"epoch {epoch} val_loss {mean:.4f}")


torch.manual_seed(3)
x = torch.randn(96, 12)
train, val = TensorDataset(x[:64], x[:64].sum(1)), TensorDataset(x[64:], x[64:].sum(1))
Trainer().fit(Module(), train, val)
