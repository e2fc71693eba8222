"""A process group and a distributed sampler, but no DistributedDataParallel: each rank trains a separate model."""
# expects: params-in-sync
# also: matches-single

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(42)
inputs = torch.randn(256, 10)
data = TensorDataset(inputs, (inputs[:, 0] > inputs[:, 1]).float().unsqueeze(1))
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=16, sampler=sampler)
model = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
criterion = nn.BCEWithLogitsLoss()
for epoch in range(4):
    sampler.set_epoch(epoch)
    for batch, labels in loader:
        optimizer.zero_grad()
        loss = criterion(model(batch), labels)
        loss.backward()
        optimizer.step()
    mean = loss.detach() / dist.get_world_size()
    dist.all_reduce(mean)
    if dist.get_rank() == 0:
        print(f"epoch {epoch}: loss {mean.item():.4f}")
dist.destroy_process_group()
