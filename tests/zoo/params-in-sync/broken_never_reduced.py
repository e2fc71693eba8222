"""Gradient accumulation with every micro-batch in no_sync: nothing is ever reduced, and the ranks diverge."""
# expects: params-in-sync
# also: matches-single

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

MICRO_BATCHES = 4


def train(model: DistributedDataParallel, loader: DataLoader, optimizer: torch.optim.Optimizer) -> torch.Tensor:
    running = torch.zeros(())
    batches = iter(loader)
    for _ in range(len(loader) // MICRO_BATCHES):
        optimizer.zero_grad()
        with model.no_sync():
            for _ in range(MICRO_BATCHES):
                inputs, targets = next(batches)
                loss = nn.functional.mse_loss(model(inputs), targets) / MICRO_BATCHES
                loss.backward()
                running += loss.detach()
        optimizer.step()
    return running


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    inputs = torch.randn(512, 6)
    data = TensorDataset(inputs, inputs.square().sum(dim=1, keepdim=True))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        running = train(model, loader, optimizer)
        dist.all_reduce(running)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: {running.item() / dist.get_world_size():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
