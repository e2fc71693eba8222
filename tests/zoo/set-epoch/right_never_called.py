"""set_epoch is called before each epoch: every epoch has a different order."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
generator = torch.Generator().manual_seed(0)
images = torch.rand(128, 1, 8, 8, generator=generator)
labels = images.mean((1, 2, 3)).gt(0.5).long()
data = TensorDataset(images, labels)
sampler = DistributedSampler(data, shuffle=True)
loader = DataLoader(data, batch_size=8, sampler=sampler, num_workers=2)
model = DDP(nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 2)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for batch, answer in loader:
        loss = nn.functional.cross_entropy(model(batch), answer)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
dist.destroy_process_group()
