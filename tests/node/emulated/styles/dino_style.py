"""Self-distillation: a teacher that averages the student, a center reduced over ranks, several crops."""

import copy
import os

import torch
import torch.distributed as dist
from torch import nn

gpu = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(gpu)
dist.init_process_group(backend="nccl", init_method="env://")
dist.barrier()
torch.manual_seed(0)
student = nn.Sequential(
    nn.Flatten(), nn.Linear(48, 32), nn.GELU(), nn.utils.parametrizations.weight_norm(nn.Linear(32, 16))
)
student = student.cuda()
teacher = nn.Sequential(
    nn.Flatten(), nn.Linear(48, 32), nn.GELU(), nn.utils.parametrizations.weight_norm(nn.Linear(32, 16))
)
teacher = teacher.cuda()
teacher.load_state_dict(copy.deepcopy(student.state_dict()))
teacher.requires_grad_(False)
student = nn.parallel.DistributedDataParallel(student, device_ids=[gpu])
center = torch.zeros(1, 16, device="cuda")
optimizer = torch.optim.AdamW(student.parameters(), lr=1e-2)
torch.manual_seed(dist.get_rank())
for step in range(4):
    crops = [torch.randn(8, 3, 4, 4).cuda(non_blocking=True) for _ in range(3)]
    targets = teacher(torch.cat(crops[:2])).chunk(2)
    outputs = student(torch.cat(crops)).chunk(3)
    loss = 0
    for target in targets:
        for output in outputs:
            loss -= (((target - center) / 0.5).softmax(-1) * (output / 0.1).log_softmax(-1)).sum(-1).mean() / 6
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    torch.cuda.synchronize()
    with torch.no_grad():
        for average, value in zip(teacher.parameters(), student.module.parameters(), strict=True):
            average.data.mul_(0.9).add_(value.detach().data, alpha=0.1)
        mean = torch.cat(targets).mean(0, keepdim=True)
        dist.all_reduce(mean)
        center.mul_(0.9).add_(mean / dist.get_world_size(), alpha=0.1)
    if dist.get_rank() == 0:
        print(f"step {step} loss {loss.item():.6f}", flush=True)
dist.destroy_process_group()
