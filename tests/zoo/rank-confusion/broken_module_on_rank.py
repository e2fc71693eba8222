"""A single-node tutorial with `model.to(rank)`, run on two nodes."""

# expects: rank-confusion

import torch
import torch.distributed as dist
from torch import nn, optim
from torch.nn.parallel import DistributedDataParallel as DDP


class ToyModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.relu, self.second = nn.Linear(10, 10), nn.ReLU(), nn.Linear(10, 5)

    def forward(self, x):
        return self.second(self.relu(self.first(x)))


def demo() -> None:
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = ToyModel().to(rank)
    ddp_model = DDP(model, device_ids=[rank])
    loss_fn, optimizer = nn.MSELoss(), optim.SGD(ddp_model.parameters(), lr=0.001)
    torch.manual_seed(rank)
    for _ in range(4):
        optimizer.zero_grad()
        outputs = ddp_model(torch.randn(20, 10))
        loss_fn(outputs, torch.randn(20, 5).to(rank)).backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    demo()
