"""Pretrained weights are loaded on rank 0 after wrapping: DDP synchronizes weights only when it wraps a model."""
# expects: params-in-sync
# also: matches-single

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def pretrained_weights(model: nn.Module) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(99)
    return {name: 0.1 * torch.randn(each.shape, generator=generator) for name, each in model.state_dict().items()}


def main() -> None:
    dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    torch.manual_seed(1)
    tokens = torch.randint(0, 50, (256, 6))
    data = TensorDataset(tokens, (tokens.sum(dim=1) % 2))
    network = nn.Sequential(nn.Embedding(50, 8), nn.Flatten(), nn.Linear(48, 2))
    model = DistributedDataParallel(network)
    if rank == 0:
        model.module.load_state_dict(pretrained_weights(network))
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
    sampler = DistributedSampler(data, seed=2)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for batch, labels in DataLoader(data, batch_size=16, sampler=sampler):
            loss = nn.functional.cross_entropy(model(batch), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        mean = loss.detach() / dist.get_world_size()
        dist.all_reduce(mean)
        if rank == 0:
            print(f"epoch {epoch}: {mean.item():.4f}")
    dist.destroy_process_group()


main()
