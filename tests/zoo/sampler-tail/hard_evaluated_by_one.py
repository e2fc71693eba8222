"""Only rank 0 evaluates, on all 45 samples, and training stops after four batches on purpose: no samples are lost."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(31)
training, test = (TensorDataset(torch.randn(count, 4), torch.randn(count, 1)) for count in (165, 45))
sampler = DistributedSampler(training)
loader, test_loader = DataLoader(training, 4, sampler=sampler), DataLoader(test, 8)
model = DistributedDataParallel(nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for number, (x, y) in enumerate(loader):
        if number == 4:
            break
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    if dist.get_rank() == 0:
        with torch.no_grad():
            error = sum((model.module(x) - y).square().sum() for x, y in test_loader) / len(test)
        print(f"epoch {epoch}: error {error:.4f}", flush=True)
    dist.barrier()
dist.destroy_process_group()
