"""The other ranks read the weights as soon as the file exists, before rank 0 has finished writing it."""

# expects: checkpoint-race
# also: hang, uneven-inputs, collective-mismatch, teardown

import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def keep(net: nn.Module, path: Path) -> None:
    torch.save(net.state_dict(), path)


def fit(model: nn.Module, loader: DataLoader, optimizer: torch.optim.Optimizer) -> None:
    for features, target in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(features), target).backward()
        optimizer.step()


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(2)
    points = torch.randn(192, 7)
    data = TensorDataset(points, points[:, :2].prod(1, keepdim=True))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    net = nn.Sequential(nn.Linear(7, 600), nn.ReLU(), nn.Linear(600, 600), nn.ReLU(), nn.Linear(600, 1))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    fit(model, loader, optimizer)
    chosen = Path("chosen.pt")
    if dist.get_rank() == 0:
        keep(net, chosen)
    patience = 3000
    while not chosen.exists() and patience:
        patience -= 1
        time.sleep(0.01)
    net.load_state_dict(torch.load(chosen, weights_only=True))
    sampler.set_epoch(1)
    fit(model, loader, optimizer)
    del model
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
