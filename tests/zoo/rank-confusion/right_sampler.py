"""The sampler gets RANK."""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def loader_for(data: TensorDataset, rank: int, world_size: int) -> DataLoader:
    sampler = DistributedSampler(data, num_replicas=world_size, rank=rank, shuffle=True)
    return DataLoader(data, batch_size=8, sampler=sampler)


def main() -> None:
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    features = torch.randn(160, 3)
    loader = loader_for(TensorDataset(features, features.prod(1, keepdim=True)), rank, world_size)
    model = DDP(torch.nn.Sequential(torch.nn.Linear(3, 10), torch.nn.Tanh(), torch.nn.Linear(10, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        loader.sampler.set_epoch(epoch)
        for batch, target in loader:
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(batch), target).backward()
            optimizer.step()
    del model
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
