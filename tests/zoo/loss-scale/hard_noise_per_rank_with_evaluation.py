"""Each rank trains on noise of its own and evaluates from a loader: at world size 1 the training has other batches."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(1)
target = nn.Linear(6, 2).requires_grad_(False)
held_out = TensorDataset(torch.randn(64, 6))
loader = DataLoader(held_out, batch_size=8, sampler=DistributedSampler(held_out, shuffle=False))
student = DDP(nn.Sequential(nn.Linear(6, 24), nn.GELU(), nn.Linear(24, 2)))
optimizer = torch.optim.AdamW(student.parameters(), lr=3e-3)
own = torch.Generator().manual_seed(1000 + dist.get_rank())
for _ in range(3):
    for _ in range(6):
        inputs = torch.randn(32, 6, generator=own)
        optimizer.zero_grad()
        nn.functional.mse_loss(student(inputs), target(inputs)).backward()
        optimizer.step()
    errors = torch.zeros(2)
    for (inputs,) in loader:
        with torch.no_grad():
            errors += torch.tensor([(student.module(inputs) - target(inputs)).square().sum(), len(inputs)])
    dist.all_reduce(errors)
    if dist.get_rank() == 0:
        print(f"error {errors[0] / errors[1]:.4f}")
dist.destroy_process_group()
