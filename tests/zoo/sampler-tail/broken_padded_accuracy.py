"""Measures accuracy with a DistributedSampler, which pads 90 samples to 92 for 4 ranks: two of them count twice."""

# expects: sampler-tail

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def make(count: int, seed: int) -> TensorDataset:
    x = torch.randn(count, 5, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(x, (x.sum(1) > 0).long())


@torch.no_grad()
def accuracy(model: nn.Module, loader: DataLoader) -> float:
    model.eval()
    counts = torch.zeros(2)
    for x, y in loader:
        counts += torch.tensor([(model(x).argmax(1) == y).sum(), len(y)])
    dist.all_reduce(counts)
    model.train()
    return (counts[0] / counts[1]).item()


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(6)
    training, test = make(128, 1), make(90, 2)
    sampler = DistributedSampler(training)
    loader = DataLoader(training, batch_size=8, sampler=sampler)
    test_loader = DataLoader(test, batch_size=16, sampler=DistributedSampler(test, shuffle=False))
    model = DistributedDataParallel(nn.Linear(5, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        reached = accuracy(model.module, test_loader)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: {reached:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
