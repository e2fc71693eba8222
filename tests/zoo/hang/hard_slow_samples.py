"""The workers of every data loader compute for seconds to decode a sample: all ranks wait, but all make progress."""

# options: --hang-timeout 4s

import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Films(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        until = time.monotonic() + (7.0 if index < 4 else 0.0)
        while time.monotonic() < until:
            sum(range(2000))
        return torch.full((3,), index / 8)


def main() -> None:
    dist.init_process_group("gloo")
    data = Films()
    sampler: DistributedSampler[torch.Tensor] = DistributedSampler(data)
    loader = DataLoader(data, batch_size=1, sampler=sampler, num_workers=1)
    model = DistributedDataParallel(torch.nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    sampler.set_epoch(0)
    for batch in loader:
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
