"""Uses `shuffle=True` instead of a DistributedSampler: every rank trains on the whole data set, four times the work."""

# expects: sampler-overlap

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset


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
    loader = DataLoader(blobs(96), batch_size=8, shuffle=True)
    for _ in range(2):
        for points, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(points), labels).backward()
            optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
