"""Scores of a padded share are gathered rank by rank and cut at the end, long after the recorded steps."""

# expects: metric-local

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def points(count: int, seed: int) -> TensorDataset:
    draws = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 8, generator=draws)
    return TensorDataset(inputs, inputs[:, :4].sum(dim=1, keepdim=True))


@torch.no_grad()
def predicted(model: nn.Module, data: TensorDataset) -> torch.Tensor:
    loader = DataLoader(data, batch_size=16, sampler=DistributedSampler(data, shuffle=False))
    own = torch.cat([model(inputs) for inputs, _ in loader])
    parts = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, own)
    return torch.cat(parts)[: len(data)]


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    training, held_out = points(256, 1), points(61, 2)
    model = DistributedDataParallel(nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sampler = DistributedSampler(training)
    for epoch in range(5):
        sampler.set_epoch(epoch)
        for inputs, targets in DataLoader(training, batch_size=16, sampler=sampler):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(inputs), targets).backward()
            optimizer.step()
    difference = (predicted(model.module, held_out) - held_out.tensors[1]).abs().mean().item()
    if dist.get_rank() == 0:
        print(f"mean absolute difference {difference:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
