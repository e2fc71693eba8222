"""A trainer wraps the network but trains with the unwrapped name. With accumulation and bfloat16 autocast."""
# expects: wrapper-bypassed
# also: params-in-sync, matches-single

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


class Waves(Dataset):
    def __init__(self, count: int) -> None:
        generator = torch.Generator().manual_seed(11)
        self.inputs = torch.rand(count, 8, generator=generator)

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int):
        return self.inputs[index], self.inputs[index].sin().sum(dim=0, keepdim=True)


class Trainer:
    def __init__(self, network: nn.Module, accumulate: int = 2) -> None:
        self.network = network
        self.replicated = DDP(network)
        self.optimizer = torch.optim.SGD(self.replicated.parameters(), lr=0.02, momentum=0.9)
        self.accumulate = accumulate

    def fit(self, data: Dataset, epochs: int) -> None:
        sampler = DistributedSampler(data, seed=1)
        loader = DataLoader(data, batch_size=8, sampler=sampler, drop_last=True)
        for epoch in range(epochs):
            sampler.set_epoch(epoch)
            total = self.epoch(loader)
            dist.all_reduce(total)
            if dist.get_rank() == 0:
                print("epoch", epoch, "loss", float(total) / dist.get_world_size() / len(loader))

    def epoch(self, loader: DataLoader) -> torch.Tensor:
        total = torch.zeros(())
        self.network.train()
        for number, (inputs, targets) in enumerate(loader, start=1):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = nn.functional.mse_loss(self.network(inputs), targets) / self.accumulate
            loss.backward()
            total += loss.detach() * self.accumulate
            if number % self.accumulate == 0:
                self.optimizer.step()
                self.optimizer.zero_grad()
        return total


dist.init_process_group("gloo")
torch.manual_seed(0)
trainer = Trainer(nn.Sequential(nn.Linear(8, 24), nn.Tanh(), nn.Linear(24, 1)))
trainer.fit(Waves(384), epochs=2)
del trainer
dist.destroy_process_group()
