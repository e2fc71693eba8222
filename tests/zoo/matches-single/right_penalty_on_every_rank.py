"""Every rank adds the weight penalty, and the mean over ranks is the penalty."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Regression(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(9, width), torch.nn.Softplus(), torch.nn.Linear(width, 1))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = torch.nn.functional.smooth_l1_loss(self.body(x), y)
        return loss + 0.05 * sum(weight.square().sum() for weight in self.parameters())


def main() -> None:
    torch.manual_seed(9)
    x = torch.randn(256, 9)
    data = TensorDataset(x, x.norm(dim=1, keepdim=True))
    sampler = DistributedSampler(data)
    model = DistributedDataParallel(Regression(16))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for x, y in DataLoader(data, batch_size=8, sampler=sampler):
            optimizer.zero_grad()
            model(x, y).backward()
            optimizer.step()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main()
    dist.destroy_process_group()
