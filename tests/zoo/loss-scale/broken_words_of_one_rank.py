"""Captions of several sources are read from streams, and each rank divides the sum over words by the count of its own words."""

# expects: loss-scale

import random

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WORDS, LONGEST, STEPS, PADDING = 29, 24, 16, 0


def captions(rank):
    """Yield padded captions; a source with a higher number has longer ones."""
    draw = random.Random(100 + rank)
    while True:
        lengths = [draw.randint(3, 6) + 6 * rank for _ in range(8)]
        batch = torch.full((8, LONGEST), PADDING)
        for row, length in zip(batch, lengths):
            first = draw.randrange(WORDS - 1)
            row[:length] = 1 + (first + torch.arange(length)) % (WORDS - 1)
        yield batch


class Writer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, 16, padding_idx=PADDING)
        self.recur = nn.GRU(16, 32, batch_first=True)
        self.out = nn.Linear(32, WORDS)

    def forward(self, words):
        return self.out(self.recur(self.embed(words))[0])


def loss_of(model, batch):
    logits, targets = model(batch[:, :-1]), batch[:, 1:]
    losses = F.cross_entropy(logits.transpose(1, 2), targets, reduction="none")
    real = targets != PADDING
    return (losses * real).sum() / real.sum()


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(3)
    model = DistributedDataParallel(Writer())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    for step, batch in zip(range(STEPS), captions(dist.get_rank())):
        loss = loss_of(model, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0 and step % 5 == 0:
            print(f"step {step}: {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
