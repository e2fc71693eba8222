"""Uses a DistributedSampler: in every epoch each rank trains on a different quarter."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def blobs(count: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(3)
    labels = torch.randint(0, 4, (count,), generator=generator)
    points = torch.randn(count, 6, generator=generator) + labels[:, None]
    return TensorDataset(points, labels)


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4)))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    data = blobs(96)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for points, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(points), labels).backward()
            optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
