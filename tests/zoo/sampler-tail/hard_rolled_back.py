"""Loses the steps since its last checkpoint, and trains on their samples again: this makes up for the loss."""

import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, Subset


class Signals(Dataset):
    def __init__(self, count: int) -> None:
        self.values = torch.randn(count, 6, generator=torch.Generator().manual_seed(2))

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, item: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.values[item], self.values[item].sum().sin()


class Failed(RuntimeError):
    pass


class Run:
    def __init__(self, data: Dataset) -> None:
        self.data, self.epoch, self.used = data, 0, 0
        self.start(None)

    def start(self, commit: dict | None) -> None:
        net = nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 1))
        self.optimizer = torch.optim.SGD(net.parameters(), lr=0.02)
        if commit:
            net.load_state_dict(commit["net"])
            self.epoch, self.used = commit["epoch"], commit["used"]
        self.model = DDP(net)
        self.commit()

    def commit(self) -> None:
        state = {"net": self.model.module.state_dict(), "epoch": self.epoch, "used": self.used}
        self.committed = copy.deepcopy(state)

    def loader(self, batch: int = 6) -> DataLoader:
        generator = torch.Generator().manual_seed(50 + self.epoch)
        left = torch.randperm(len(self.data), generator=generator)[self.used :]
        mine = left[dist.get_rank() :: dist.get_world_size()].tolist()
        return DataLoader(Subset(self.data, mine), batch_size=batch, drop_last=True)

    def train_epoch(self, fails_at: int | None = None) -> None:
        for number, (x, y) in enumerate(self.loader(), 1):
            self.optimizer.zero_grad()
            nn.functional.mse_loss(self.model(x).squeeze(1), y).backward()
            self.optimizer.step()
            self.used += len(x) * dist.get_world_size()
            if number % 5 == 0:
                self.commit()
            if number == fails_at:
                raise Failed(f"after {number} batches")
        self.epoch, self.used = self.epoch + 1, 0


if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    run = Run(Signals(180))
    while run.epoch < 4:
        try:
            run.train_epoch(fails_at=9 if run.epoch == 1 and not run.used else None)
        except Failed as reason:
            print("restored", reason)
            run.start(run.committed)
    dist.destroy_process_group()
