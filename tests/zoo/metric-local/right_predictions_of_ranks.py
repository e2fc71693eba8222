"""Predictions are gathered rank by rank, put back into the order of the held-out set, and compared with its labels."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def points(count: int, seed: int) -> TensorDataset:
    draws = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 8, generator=draws)
    return TensorDataset(inputs, (inputs[:, :4].sum(dim=1) > 0).long())


@torch.no_grad()
def accuracy(model: nn.Module, data: TensorDataset) -> float:
    loader = DataLoader(data, batch_size=16, sampler=DistributedSampler(data, shuffle=False))
    own = torch.cat([model(inputs).argmax(dim=1) for inputs, _ in loader])
    gathered = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, own)
    labels = data.tensors[1]
    return (torch.stack(gathered, dim=1).flatten()[: len(labels)] == labels).double().mean().item()


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    training, held_out = points(128, 1), points(64, 2)
    model = DistributedDataParallel(nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    sampler = DistributedSampler(training)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for inputs, labels in DataLoader(training, batch_size=16, sampler=sampler):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
        value = accuracy(model.module, held_out)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: accuracy {value:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
