"""The model centers inputs by a running mean, which differs between ranks because of broadcast_buffers=False."""
# expects: params-in-sync
# also: matches-single

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Centered(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(width))
        self.linear = nn.Linear(width, 1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if self.training:
            with torch.no_grad():
                self.mean.lerp_(inputs.mean(dim=0), 0.1)
        return self.linear(inputs - self.mean)


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(3)
    inputs = torch.randn(256, 5) + 2
    data = TensorDataset(inputs, inputs.sum(dim=1, keepdim=True))
    model = DistributedDataParallel(Centered(5), broadcast_buffers=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    sampler = DistributedSampler(data)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for batch, targets in DataLoader(data, batch_size=8, sampler=sampler):
            loss = nn.functional.mse_loss(model(batch), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: {total.item() / dist.get_world_size():.4f}")
    dist.destroy_process_group()


main()
