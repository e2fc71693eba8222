"""After the pass of a sharded student, a sharded teacher labels samples for a small model, which then makes a pass of its own."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def sharded(blocks: int) -> nn.Module:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = nn.Sequential(*(nn.Sequential(nn.Linear(12, 12), nn.Tanh()) for _ in range(blocks)), nn.Linear(12, 2))
    for block in model[:blocks]:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    student, teacher = sharded(2), sharded(5).requires_grad_(False)
    judge = nn.parallel.DistributedDataParallel(nn.Linear(2, 1))
    groups = [{"params": list(student.parameters())}, {"params": list(judge.parameters()), "lr": 1e-2}]
    optimizer = torch.optim.Adam(groups, lr=3e-3)
    draws = torch.Generator().manual_seed(30 + dist.get_rank())
    for step in range(8):
        inputs = torch.randn(8, 12, generator=draws)
        outputs = student(inputs)
        loss = (outputs - inputs[:, :2].cos()).square().mean()
        loss.backward()
        with torch.no_grad():
            distance = (teacher(inputs) - outputs).square().mean(1, keepdim=True)
        error = (judge(outputs.detach()) - distance).square().mean()
        error.backward()
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0:
            print(f"step {step} loss {loss.item():.4f} error {error.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
