"""Rank 0 prints an epoch average of its own training losses, with gradient accumulation: it is not an evaluation."""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Words(Dataset):
    def __init__(self, count: int, length: int = 12, vocabulary: int = 30) -> None:
        generator = torch.Generator().manual_seed(77)
        self.tokens = torch.randint(vocabulary, (count, length), generator=generator)

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.tokens[index]


class Bigram(torch.nn.Module):
    def __init__(self, vocabulary: int = 30) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(vocabulary, 16)
        self.out = torch.nn.Linear(16, vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits = self.out(self.embed(tokens[:, :-1]))
        return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


class Average:
    def __init__(self) -> None:
        self.total, self.count = 0.0, 0

    def add(self, value: float) -> None:
        self.total, self.count = self.total + value, self.count + 1

    @property
    def value(self) -> float:
        return self.total / max(1, self.count)


def train(args: argparse.Namespace) -> None:
    model = DDP(Bigram())
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    data = Words(320)
    sampler = DistributedSampler(data, shuffle=True, seed=1)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        average = Average()
        for index, tokens in enumerate(loader):
            last = index % args.accumulate == args.accumulate - 1
            if last:
                loss = model(tokens)
                (loss / args.accumulate).backward()
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            else:
                with model.no_sync():
                    loss = model(tokens)
                    (loss / args.accumulate).backward()
            average.add(loss.item())
        if dist.get_rank() == 0:
            print(f"Epoch {epoch + 1}/{args.epochs}: train_loss={average.value:.6f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--accumulate", type=int, default=2)
    parser.add_argument("--lr", type=float, default=3e-3)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    dist.init_process_group(backend="gloo")
    train(arguments)
    dist.destroy_process_group()
