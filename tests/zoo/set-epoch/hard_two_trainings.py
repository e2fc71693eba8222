"""One epoch with each of two learning rates over the same data: both are epoch 0, and rightly use the same order."""

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, TensorDataset


class Shuffled(IterableDataset):
    """Records in a different order in each epoch; every rank yields its share."""

    def __init__(self, records: Tensor) -> None:
        self.records, self.epoch = records, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[Tensor]:
        order = torch.randperm(len(self.records), generator=torch.Generator().manual_seed(31 + self.epoch))
        yield from self.records[order][dist.get_rank() :: dist.get_world_size()]


def fit(rate: float, mapped: DataLoader, stream: DataLoader) -> float:
    torch.manual_seed(90)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(5, 12), nn.ELU(), nn.Linear(12, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    mapped.sampler.set_epoch(0)
    stream.dataset.set_epoch(0)
    for loader in (mapped, stream):
        for batch in loader:
            rows = batch[0] if isinstance(batch, list) else batch
            loss = nn.functional.l1_loss(model(rows[:, :5]), rows[:, 5:])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    dist.all_reduce(loss := loss.detach() / dist.get_world_size())
    return loss.item()


dist.init_process_group("gloo")
generator = torch.Generator().manual_seed(6)
records = torch.randn(128, 6, generator=generator)
data = TensorDataset(records)
loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data))
results = {rate: fit(rate, loader, DataLoader(Shuffled(records.flip(0)), batch_size=8)) for rate in (0.01, 0.1)}
if dist.get_rank() == 0:
    print("best rate", min(results, key=results.__getitem__))
dist.destroy_process_group()
