"""Stops in the middle of an epoch, and goes on from a checkpoint with the position that all ranks together had come to."""

from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Sampler, TensorDataset

CHECKPOINT = Path("halfway.pt")
BATCH = 8


class Resumable(Sampler[int]):
    def __init__(self, length: int) -> None:
        self.length, self.epoch, self.position = length, 0, 0

    def __iter__(self):
        generator = torch.Generator().manual_seed(self.epoch)
        order = torch.randperm(self.length, generator=generator).tolist()[self.position :]
        return iter(order[dist.get_rank() :: dist.get_world_size()])

    def __len__(self) -> int:
        return (self.length - self.position) // dist.get_world_size()


def fit(data: TensorDataset, epochs: int, steps: int | None = None) -> None:
    sampler = Resumable(len(data))
    network = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 2))
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    if CHECKPOINT.exists():
        state = torch.load(CHECKPOINT)
        network.load_state_dict(state["network"])
        optimizer.load_state_dict(state["optimizer"])
        sampler.epoch, sampler.position = state["epoch"], state["position"]
    model = DistributedDataParallel(network)
    loader = DataLoader(data, batch_size=BATCH, sampler=sampler)
    done = 0
    while sampler.epoch < epochs:
        for features, target in loader:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(features), target).backward()
            optimizer.step()
            sampler.position += len(features) * dist.get_world_size()
            done += 1
            if done == steps:
                break
        if done == steps:
            break
        sampler.epoch, sampler.position = sampler.epoch + 1, 0
    if dist.get_rank() == 0:
        names = {"epoch": sampler.epoch, "position": sampler.position}
        torch.save({"network": network.state_dict(), "optimizer": optimizer.state_dict(), **names}, CHECKPOINT)
    dist.barrier()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.manual_seed(6)
    features = torch.randn(192, 5)
    data = TensorDataset(features, features[:, :2] * features[:, 2:4])
    dist.barrier()
    fit(data, epochs=3, steps=5 * len(data) // (3 * BATCH * dist.get_world_size()))
    fit(data, epochs=3)
    dist.destroy_process_group()
