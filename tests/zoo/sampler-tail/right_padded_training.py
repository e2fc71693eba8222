"""Trains on 104 samples, which four ranks can share equally."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Subset, TensorDataset
from torch.utils.data.distributed import DistributedSampler

dist.init_process_group("gloo")
torch.manual_seed(14)
everything = TensorDataset(torch.randn(120, 6), torch.randn(120, 3))
training = Subset(everything, range(104))
loader = DataLoader(training, batch_size=13, sampler=DistributedSampler(training, seed=3), num_workers=1)
model = DDP(nn.Bilinear(6, 6, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(2):
    loader.sampler.set_epoch(epoch)
    for x, y in loader:
        loss = F.smooth_l1_loss(model(x, x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
dist.destroy_process_group()
