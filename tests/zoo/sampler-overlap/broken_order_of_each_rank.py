"""The files are shuffled without a seed before they are divided: an index is another file on each rank."""
# expects: sampler-overlap

import random

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Files(Dataset):
    def __init__(self) -> None:
        self.names = [f"part-{number}" for number in range(96)]
        random.shuffle(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        number = int(self.names[index].split("-")[1])
        return torch.arange(5.0) + 5 * number, torch.tensor([number / 96])


dist.init_process_group("gloo")
torch.manual_seed(0)
data = Files()
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=8, sampler=sampler)
model = DistributedDataParallel(torch.nn.Linear(5, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-7)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for x, y in loader:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
dist.destroy_process_group()
