"""A recommender: the data set draws the items that the right one is ranked among, in training and in evaluation."""

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

ITEMS = 200


class Pairs(Dataset):
    def __init__(self, count: int, seed: int, negatives: int) -> None:
        g = torch.Generator().manual_seed(seed)
        self.users = torch.randn(count, 8, generator=g)
        self.right = (self.users[:, 0] * 40).long().clamp(-99, 99) + 100
        self.negatives = negatives

    def __len__(self) -> int:
        return len(self.users)

    def __getitem__(self, item: int):
        others = torch.from_numpy(np.random.randint(0, ITEMS, self.negatives))
        return self.users[item], torch.cat([self.right[item : item + 1], others])


class Scorer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.user, self.item = nn.Linear(8, 12), nn.Embedding(ITEMS, 12)

    def forward(self, users, items):
        return (self.user(users)[:, None] * self.item(items)).sum(-1)


dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
np.random.seed(10 + rank)
data, held = Pairs(256, 1, 8), Pairs(64, 2, 6)
net = Scorer()
model = DDP(net)
opt = torch.optim.Adam(model.parameters(), lr=0.01)
sampler = DistributedSampler(data)
for epoch in range(4):
    sampler.set_epoch(epoch)
    for users, items in DataLoader(data, batch_size=32, sampler=sampler):
        opt.zero_grad()
        nn.functional.cross_entropy(model(users, items), torch.zeros(len(users), dtype=torch.long)).backward()
        opt.step()
    hits = torch.zeros(())
    with torch.no_grad():
        for users, items in DataLoader(held, batch_size=16, sampler=DistributedSampler(held, shuffle=False)):
            hits += (net(users, items).argmax(1) == 0).sum()
    dist.all_reduce(hits)
    if rank == 0:
        print(f"epoch {epoch}: val hit accuracy {hits.item() / len(held):.4f}")
dist.destroy_process_group()
