"""Whole weights are saved, and what the optimizer keeps for them."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel


def states(model, optimizer):
    return get_state_dict(model, optimizer, options=StateDictOptions(full_state_dict=True))


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(3)
    layers = nn.Sequential(nn.Linear(6, 31), nn.Tanh(), nn.Linear(31, 2))
    model = FullyShardedDataParallel(layers, device_id=torch.device("cpu"))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(20 + dist.get_rank())
    for _ in range(8):
        inputs = torch.randn(12, 6, generator=generator)
        optimizer.zero_grad()
        (model(inputs) - inputs[:, :2].sin()).square().mean().backward()
        optimizer.step()
    found = states(model, optimizer)
    if dist.get_rank() == 0:
        torch.save(found, "flat.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
