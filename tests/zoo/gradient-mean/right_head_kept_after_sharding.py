"""The parameters of the head are collected for a group of their own after fully_shard has replaced them."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 20), nn.Tanh(), nn.Linear(20, 20), nn.Tanh())
        self.head = nn.Linear(20, 3)

    def forward(self, inputs):
        return self.head(self.body(inputs))


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(5)
    model = Reader()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    fully_shard(model, mesh=mesh)
    head = list(model.head.parameters())
    optimizer = torch.optim.AdamW([{"params": model.body.parameters()}, {"params": head, "lr": 0.02}], lr=0.005)
    generator = torch.Generator().manual_seed(60 + dist.get_rank())
    for _ in range(12):
        inputs = torch.randn(16, 6, generator=generator)
        nn.functional.cross_entropy(model(inputs), inputs[:, :3].argmax(1)).backward()
        optimizer.step()
        model.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
