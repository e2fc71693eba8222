"""Metrics that only look local: an evaluation of all samples on rank 0, losses labeled by rank, the speed of each node."""

import os
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def make(count: int, seed: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(count, 8, generator=generator)
    return TensorDataset(features, features.square().mean(1, keepdim=True))


def main() -> None:
    dist.init_process_group("gloo")
    rank, local_rank = dist.get_rank(), int(os.environ["LOCAL_RANK"])
    torch.manual_seed(0)
    model = DDP(torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.SiLU(), torch.nn.Linear(16, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    train, valid = make(240, 1), make(64, 2)
    sampler = DistributedSampler(train)
    loader = DataLoader(train, batch_size=12, sampler=sampler)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        begun = time.perf_counter()
        for features, targets in loader:
            loss = torch.nn.functional.mse_loss(model(features), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if rank == 0:
            print(f"[rank 0] last loss {loss.item():.5f}")
            with torch.no_grad():  # one rank evaluates the whole validation set: slow for the others, but right
                losses = [torch.nn.functional.mse_loss(model.module(x), y) for x, y in DataLoader(valid, batch_size=16)]
            print(f"epoch {epoch} validation loss {torch.stack(losses).mean():.5f}")
        if local_rank == 0:
            print(
                f"node {os.environ['GROUP_RANK']}: {len(loader) * 24 / (time.perf_counter() - begun):.1f} samples a second"
            )
        dist.barrier()
    del model
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
