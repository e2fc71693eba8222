"""The learning rate is multiplied by the world size when arguments are parsed, and again for the optimizer."""

# expects: loss-scale

import argparse

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=1e-3)
    arguments = parser.parse_args()
    arguments.lr *= dist.get_world_size()  # the linear rule
    return arguments


def make_optimizer(model: torch.nn.Module, lr: float) -> torch.optim.Optimizer:
    decayed = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": decayed, "weight_decay": 1e-4}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.SGD(groups, lr=lr * dist.get_world_size())


def main() -> None:
    arguments = read_arguments()
    torch.manual_seed(7)
    x = torch.rand(192, 5)
    data = TensorDataset(x, torch.sin(x.sum(1, keepdim=True)))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    model = DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(5, 20), torch.nn.ReLU(), torch.nn.Linear(20, 1))
    )
    optimizer = make_optimizer(model, arguments.lr)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = (model(x) - y).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main()
    dist.destroy_process_group()
