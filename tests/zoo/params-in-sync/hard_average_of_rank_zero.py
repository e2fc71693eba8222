"""Self-distillation with a frozen teacher in training mode on all ranks, and an average that rank 0 alone keeps and uses."""

import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
student = nn.Sequential(nn.Linear(8, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 4))
teacher = copy.deepcopy(student).requires_grad_(False)
average = copy.deepcopy(student).requires_grad_(False) if rank == 0 else None
model = DDP(student)
optimizer = torch.optim.SGD(model.parameters(), 1e-2)
data = TensorDataset(torch.randn(128, 8, generator=torch.Generator().manual_seed(1)))
sampler = DistributedSampler(data)
loader = DataLoader(data, 8, sampler=sampler)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for (inputs,) in loader:
        with torch.no_grad():
            wanted = teacher(inputs).softmax(1)
        loss = nn.functional.cross_entropy(model(inputs), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if average is not None:
            for slow, fast in zip(average.parameters(), student.parameters()):
                slow.lerp_(fast.detach(), 0.1)
    if average is not None:
        with torch.no_grad():
            print(f"epoch {epoch}: average {average(torch.ones(2, 8)).abs().mean():.4f}")
dist.destroy_process_group()
