"""Each rank draws its own split, and noise on the samples hides that an index is another sample there."""
# expects: sampler-overlap

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, random_split


class Noisy(Dataset):
    def __init__(self):
        self.x = torch.randn(200, 5, generator=torch.Generator().manual_seed(1))

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index] + 0.01 * torch.randn(5), self.x[index].sum()


dist.init_process_group("gloo")
torch.manual_seed(7 + dist.get_rank())
train, _ = random_split(Noisy(), [160, 40])
sampler = DistributedSampler(train)
loader = DataLoader(train, batch_size=16, sampler=sampler)
model = DistributedDataParallel(nn.Linear(5, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for epoch in range(4):
    sampler.set_epoch(epoch)
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x).squeeze(1), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
dist.destroy_process_group()
