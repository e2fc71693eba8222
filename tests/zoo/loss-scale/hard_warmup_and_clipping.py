"""A warm-up to world-size times the learning rate, with clipping: the rates rightly differ from those of one rank."""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main() -> None:
    world_size = dist.get_world_size()
    torch.manual_seed(4)
    x = torch.randn(384, 8)
    data = TensorDataset(x, (x.square().sum(1) > 8).float())
    sampler = DistributedSampler(data, seed=4)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    model = DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(8, 24), torch.nn.ReLU(), torch.nn.Linear(24, 1))
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3 * world_size)
    warm = max(1, len(data) // (8 * world_size))  # one epoch
    schedule = LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / warm))
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = torch.nn.functional.binary_cross_entropy_with_logits(model(x).squeeze(1), y)
            optimizer.zero_grad()
            loss.backward()
            clip_grad_norm_(model.parameters(), max_norm=0.2)
            optimizer.step()
            schedule.step()
        if int(os.environ["RANK"]) == 0:
            print("epoch", epoch, "rate", schedule.get_last_lr()[0], flush=True)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main()
    dist.destroy_process_group()
