"""An adapter is added to the wrapped model. DDP does not know its weights, so each rank trains a different adapter."""
# expects: params-after-wrap
# also: params-in-sync, matches-single

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Network(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.inner = nn.Linear(6, width)
        self.adapter: nn.Module = nn.Identity()
        self.outer = nn.Linear(width, 2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.outer(self.adapter(torch.relu(self.inner(inputs))))


def add_adapter(network: Network, width: int = 16) -> None:
    network.adapter = nn.Sequential(nn.Linear(width, 4), nn.ReLU(), nn.Linear(4, width))


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    points = torch.randn(256, 6)
    data = TensorDataset(points, (points.sum(dim=1) > 0).long())
    model = DistributedDataParallel(Network())
    add_adapter(model.module)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    sampler = DistributedSampler(data)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        losses = []
        for inputs, labels in DataLoader(data, batch_size=8, sampler=sampler):
            loss = nn.functional.cross_entropy(model(inputs), labels)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        mean = torch.stack(losses).mean() / dist.get_world_size()
        dist.reduce(mean, dst=0)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: {mean:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
