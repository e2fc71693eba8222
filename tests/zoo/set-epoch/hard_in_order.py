"""No set_epoch and no shuffling: samples come in the order of their difficulty on purpose, in every epoch."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(4)
difficulty = torch.linspace(0, 1, 96)[:, None]
x = torch.randn(96, 5)
data = TensorDataset(x + difficulty, x.sum(1, keepdim=True))
train = DataLoader(data, batch_size=6, sampler=DistributedSampler(data, shuffle=False))
check = DataLoader(data, batch_size=12, sampler=DistributedSampler(data))  # shuffled, but not used for training
model = DistributedDataParallel(nn.Linear(5, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for epoch in range(2):
    for given, wanted in train:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(given), wanted).backward()
        optimizer.step()
    with torch.no_grad():
        total = sum((model(given) - wanted).square().sum() for given, wanted in check)
    dist.all_reduce(total)
    if dist.get_rank() == 0:
        print(f"epoch {epoch}: {total.item() / len(data):.4f}", flush=True)
dist.destroy_process_group()
