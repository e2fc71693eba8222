"""FSDP reduces gradients in the first pass of each step, so what the other passes add waits for the next step."""

# expects: gradient-mean

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

PASSES = 4


def main() -> None:
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.GELU()) for _ in range(3)), nn.Linear(16, 2))
    for block in model[:3]:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    draws = torch.Generator().manual_seed(20 + dist.get_rank())
    for step in range(8):
        for turn in range(PASSES):
            model.set_requires_gradient_sync(turn % PASSES == 0)
            inputs = torch.randn(8, 16, generator=draws)
            loss = nn.functional.mse_loss(model(inputs), inputs[:, :2].sin())
            (loss / PASSES).backward()
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0:
            print(f"step {step} loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
