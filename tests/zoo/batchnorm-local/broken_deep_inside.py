"""BatchNorm inside a compiled model, and DDP does not broadcast buffers: the running statistics diverge too."""
# expects: batchnorm-local
# also: matches-single

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(width)
        self.linear = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.linear(torch.relu(self.norm(x)))


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    x = torch.randn(256, 10)
    data = TensorDataset(x, x.cumsum(dim=1)[:, -1:])
    network = nn.Sequential(nn.Linear(10, 12), Residual(12), Residual(12), nn.Linear(12, 1))
    model = DDP(torch.compile(network, backend="eager"), broadcast_buffers=False)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=16, sampler=sampler, drop_last=True)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.smooth_l1_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
        shown = loss.detach().clone()
        dist.reduce(shown, 0)
        if dist.get_rank() == 0:
            print(f"epoch {epoch} loss {shown.item() / dist.get_world_size():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
