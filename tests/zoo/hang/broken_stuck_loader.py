"""A data loader's worker is stuck on one sample (a mount that hangs); its rank waits for it, and the others for the rank."""

# expects: hang
# options: --hang-timeout 4s

import os
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Remote(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 17:
            time.sleep(100_000)
        return torch.full((6,), float(index))


def main() -> None:
    dist.init_process_group("gloo")
    data = Remote()
    sampler: DistributedSampler[torch.Tensor] = DistributedSampler(data, shuffle=True, seed=3)
    loader = DataLoader(data, batch_size=2, sampler=sampler, num_workers=2)
    model = DistributedDataParallel(torch.nn.Linear(6, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for batch in loader:
            loss = model(batch).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    main()
