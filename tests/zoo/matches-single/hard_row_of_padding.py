"""Padded words go backwards through a layer, so the embedding of padding changes the loss; its gradient is left out on purpose."""

import random

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WORDS, STEPS = 15, 24


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, 12, padding_idx=0)
        self.recur = nn.GRU(12, 16, bias=False, batch_first=True, bidirectional=True)
        self.out = nn.Linear(32, WORDS)

    def forward(self, words):
        return self.out(self.recur(self.embed(words))[0])


def sentences(rank):
    draw = random.Random(rank)
    while True:
        rows = [[draw.randrange(1, WORDS) for _ in range(draw.choice((2, 3, 9)))] for _ in range(12)]
        yield torch.tensor([row + [0] * (9 - len(row)) for row in rows])


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(4)
    model = DistributedDataParallel(Tagger())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _, words in zip(range(STEPS), sentences(dist.get_rank())):
        count = (words > 0).sum().float()
        dist.all_reduce(count)
        logits = model(words)
        total = F.cross_entropy(logits.flatten(0, 1), words.flatten(), ignore_index=0, reduction="sum")
        optimizer.zero_grad()
        (total * dist.get_world_size() / count).backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
