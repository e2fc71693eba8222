"""Evaluates with a sampler that pads, but gathers the predictions and drops the padding: each sample counts once."""

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
    hits = torch.cat([model(x).argmax(1) == y for x, y in loader])
    gathered = [torch.empty_like(hits) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, hits)
    model.train()
    in_order = torch.stack(gathered, dim=1).flatten()  # in the order in which the sampler assigned them
    return in_order[: len(loader.dataset)].float().mean().item()


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
