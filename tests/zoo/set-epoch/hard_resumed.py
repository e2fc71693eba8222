"""Resumes at epoch 3, stops epochs early, and keeps its workers: orders differ, although little of each is seen."""

import itertools

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main(first_epoch: int = 3, epochs: int = 6, steps: int = 4) -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(8)
    data = TensorDataset(torch.randn(192, 3), torch.randint(0, 3, (192,)))
    sampler = DistributedSampler(data, seed=21)
    loader = DataLoader(data, batch_size=4, sampler=sampler, num_workers=2, persistent_workers=True, drop_last=True)
    model = DDP(nn.Linear(3, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(first_epoch, epochs):
        sampler.set_epoch(epoch)
        for x, y in itertools.islice(loader, steps):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
