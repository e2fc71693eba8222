"""Rank 0 writes the best weights to a temporary name and renames the file; all ranks wait at a barrier, then load it."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(8)
    features = torch.randn(128, 5)
    data = TensorDataset(features, features.sum(1, keepdim=True))
    net = nn.Sequential(nn.Linear(5, 400), nn.ReLU(), nn.Linear(400, 1))
    model = nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    sampler = DistributedSampler(data)
    if rank == 0:
        torch.save(net.state_dict(), "best.pt")  # so that the file always exists
    dist.barrier()
    best = float("inf")
    for epoch in range(2):
        sampler.set_epoch(epoch)
        total = torch.zeros(1)
        for batch, target in DataLoader(data, batch_size=8, sampler=sampler):
            loss = (model(batch) - target).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
        dist.all_reduce(total)
        if total.item() < best:
            best = total.item()
            if rank == 0:
                torch.save(net.state_dict(), "best.pt.new")
                os.replace("best.pt.new", "best.pt")  # noqa: PTH105 - as people write it
        dist.barrier()
        net.load_state_dict(torch.load("best.pt", weights_only=True))
    del model
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
