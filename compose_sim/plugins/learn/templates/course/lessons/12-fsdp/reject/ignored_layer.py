"""Fit a network whose blocks are sharded over the ranks with FSDP2; the last layer is left to each rank."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard


def build() -> nn.Sequential:
    blocks = [nn.Sequential(nn.Linear(32, 32), nn.Tanh()) for _ in range(4)]
    return nn.Sequential(*blocks, nn.Linear(32, 1))


def train() -> None:
    torch.manual_seed(0)
    model = build()
    for block in model[:-1]:
        fully_shard(block)
    fully_shard(model, ignored_params={*model[-1].parameters()})  # nobody averages their gradients
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)  # after sharding: it must step the shards
    generator = torch.Generator().manual_seed(dist.get_rank())  # each rank has samples of its own
    for _ in range(8):
        inputs = torch.rand(8, 32, generator=generator)
        loss = nn.functional.mse_loss(model(inputs), inputs.mean(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    train()
    dist.destroy_process_group()
