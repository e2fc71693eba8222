"""Two towers; every rank scores its own queries against the documents of all ranks, gathered with gradients."""

import torch
import torch.distributed as dist
import torch.distributed.nn
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.document = nn.Linear(10, 8), nn.Linear(12, 8)

    def forward(self, q, d):
        return nn.functional.normalize(self.query(q), dim=1), nn.functional.normalize(self.document(d), dim=1)


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(4)
data = TensorDataset(torch.randn(96, 10), torch.randn(96, 12))
model = DistributedDataParallel(Towers())
optimizer = torch.optim.SGD(model.parameters(), 0.1)
sampler = DistributedSampler(data, drop_last=True)
loader = DataLoader(data, 4, sampler=sampler, drop_last=True)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for q, d in loader:
        q, d = model(q, d)
        everything = torch.cat(torch.distributed.nn.all_gather(d))
        target = torch.arange(len(q)) + rank * len(q)
        loss = nn.functional.cross_entropy(q @ everything.T / 0.1, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
dist.destroy_process_group()
