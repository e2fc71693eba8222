"""Class indices are enumerated from a set of strings, whose order differs between processes."""

# expects: sampler-overlap

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

NAMES = [f"topic-{i}" for i in range(8)]


class Documents(Dataset):
    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        self.x = torch.randn(128, 10, generator=generator)
        self.topics = [NAMES[i] for i in torch.randint(0, 8, (128,), generator=generator)]
        self.index = {name: i for i, name in enumerate(set(self.topics))}

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.index[self.topics[i]]


dist.init_process_group("gloo")
torch.manual_seed(0)
data = Documents()
model = DistributedDataParallel(nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, len(data.index))))
optimizer = torch.optim.Adam(model.parameters(), 1e-2)
sampler = DistributedSampler(data)
loader = DataLoader(data, 4, sampler=sampler)
sampler.set_epoch(0)
for x, y in loader:
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
dist.destroy_process_group()
