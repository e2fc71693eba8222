"""The loss is summed over samples and divided by the rank's batch size, which is the mean."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

BATCH_SIZE = 16


def train(model: DistributedDataParallel, loader: DataLoader, optimizer: torch.optim.Optimizer) -> None:
    for x, y in loader:
        errors = (model(x) - y) ** 2
        loss = errors.sum() / BATCH_SIZE
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def main() -> None:
    torch.manual_seed(0)
    x = torch.randn(256, 4)
    data = TensorDataset(x, x[:, :1] * x[:, 1:2])
    sampler = DistributedSampler(data, drop_last=True)
    loader = DataLoader(data, BATCH_SIZE, sampler=sampler, drop_last=True)
    model = DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(4, 32), torch.nn.SiLU(), torch.nn.Linear(32, 1))
    )
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        train(model, loader, optimizer)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main()
    dist.destroy_process_group()
