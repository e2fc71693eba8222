"""Each rank is a client, of which half take part in a round, and what they give is divided by their own samples."""

import random

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

ROUNDS = 8


def data_of(client: int) -> TensorDataset:
    draws = torch.Generator().manual_seed(40 + client)
    inputs = torch.randn(60 + 20 * client, 6, generator=draws)
    return TensorDataset(inputs, (inputs[:, :3].sum(dim=1) > 0).long())


def trained(weights: dict[str, torch.Tensor], data: TensorDataset, seed: int) -> dict[str, torch.Tensor]:
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))
    model.load_state_dict(weights)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for inputs, labels in DataLoader(data, 20, shuffle=True, generator=torch.Generator().manual_seed(seed)):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    return model.state_dict()


def main() -> None:
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    common = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2)).state_dict()
    data = data_of(rank)
    counts = [60 + 20 * client for client in range(size)]
    for number in range(ROUNDS):
        chosen = random.Random(number).sample(range(size), max(1, size // 2))
        share = counts[rank] / sum(counts[each] for each in chosen) if rank in chosen else 0.0
        local = trained(common, data, 100 * number + rank) if rank in chosen else common
        for name, value in local.items():
            given = value.detach() * share
            dist.all_reduce(given)
            common[name] = given
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
