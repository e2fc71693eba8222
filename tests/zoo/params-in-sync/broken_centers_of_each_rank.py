"""The loss has centers that are trained too, and each rank has its own from the start: only the network is wrapped."""

# expects: params-in-sync

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy, normalize
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Centers(nn.Module):
    """A loss with a trainable center for each class."""

    def __init__(self, classes: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(classes, width) * 0.1)

    def forward(self, features: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return cross_entropy(8 * normalize(features) @ normalize(self.weight).T, labels)


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(4 + dist.get_rank())
    draws = torch.Generator().manual_seed(1)
    faces = torch.randn(256, 10, generator=draws)
    data = TensorDataset(faces, faces[:, :5].argmax(1))
    sampler = DistributedSampler(data, seed=2)
    loader = DataLoader(data, batch_size=16, sampler=sampler)
    network = DistributedDataParallel(nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 16)))
    criterion = Centers(5, 16)
    optimizer = torch.optim.Adam([*network.parameters(), *criterion.parameters()], lr=3e-3)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for inputs, labels in loader:
            optimizer.zero_grad()
            loss = criterion(network(inputs), labels)
            loss.backward()
            optimizer.step()
        if dist.get_rank() == 0:
            print(f"epoch {epoch} loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
