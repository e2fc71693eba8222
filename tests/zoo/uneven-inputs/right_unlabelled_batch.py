"""All ranks skip a batch if one of them finds no labels in its own."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Sentences(Dataset):
    def __len__(self) -> int:
        return 48

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        words = torch.randn(6, generator=torch.Generator().manual_seed(index))
        label = -1 if index in (4, 5, 9) else int(words.sum() > 0)  # -1: nobody has labelled it
        return words, torch.tensor(label)


dist.init_process_group("gloo")
torch.manual_seed(0)
data = Sentences()
loader = DataLoader(data, batch_size=1, sampler=DistributedSampler(data, shuffle=False))
model = DistributedDataParallel(nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 2)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    loader.sampler.set_epoch(epoch)
    correct = torch.zeros(1)
    for words, labels in loader:
        empty = (labels < 0).all().float()
        dist.all_reduce(empty, op=dist.ReduceOp.MAX)
        if empty:
            continue
        scores = model(words)
        loss = nn.functional.cross_entropy(scores, labels, ignore_index=-1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        correct += (scores.argmax(1) == labels).sum()
    dist.all_reduce(correct)
dist.destroy_process_group()
