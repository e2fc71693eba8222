"""A translation model returns its loss divided by the number of micro-batches, and the loop does not divide again."""

import argparse
import contextlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Pairs(Dataset):
    def __init__(self, number):
        generator = torch.Generator().manual_seed(3)
        self.sources = torch.randint(0, 30, (number, 6), generator=generator)

    def __len__(self):
        return len(self.sources)

    def __getitem__(self, index):
        return self.sources[index], self.sources[index].flip(0)


class Translator(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(30, 16)
        self.encoder = nn.GRU(16, 16, batch_first=True, bidirectional=True)
        self.head = nn.Linear(32, 30)

    def forward(self, source, target):
        hidden, _ = self.encoder(self.embedding(source))
        loss = nn.functional.cross_entropy(self.head(hidden).flatten(0, 1), target.flatten())
        return loss / self.config.micro_batches


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--micro-batches", type=int, default=4)
    config = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(Translator(config))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    sampler = DistributedSampler(data := Pairs(128), shuffle=True)
    loader = DataLoader(data, batch_size=4, sampler=sampler)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for number, (source, target) in enumerate(loader, start=1):
            is_last = number % config.micro_batches == 0
            with contextlib.nullcontext() if is_last else model.no_sync():
                loss = model(source, target)
                loss.backward()
            if is_last:
                optimizer.step()
                optimizer.zero_grad()
    dist.destroy_process_group()


main()
