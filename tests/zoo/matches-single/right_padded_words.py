"""The words are padded so that each rank has equally many, and the empty ones get no score."""

import torch
import torch.distributed as dist
from torch import nn

WORDS, WIDTH, BATCH = 26, 16, 32


class Sum(torch.autograd.Function):
    """Add up over the ranks; each passes the gradient on."""

    @staticmethod
    def forward(ctx, own: torch.Tensor) -> torch.Tensor:
        total = own.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


class Copy(torch.autograd.Function):
    """Pass on; gradients are added up over the ranks."""

    @staticmethod
    def forward(ctx, inputs: torch.Tensor) -> torch.Tensor:
        return inputs.view_as(inputs)

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> torch.Tensor:
        total = gradient.clone()
        dist.all_reduce(total)
        return total


class Words(nn.Module):
    """The next word's scores; each rank has those of equally many words, some of which may be empty."""

    def __init__(self) -> None:
        super().__init__()
        world = dist.get_world_size()
        self.count = -(-WORDS // world)
        self.first = dist.get_rank() * self.count
        rows = torch.randn(WORDS, WIDTH, generator=torch.Generator().manual_seed(6))
        rows = nn.functional.pad(rows, (0, 0, 0, self.count * world - WORDS))
        self.rows = nn.Parameter(rows[self.first : self.first + self.count].clone())

    def forward(self, hidden: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        scores = Copy.apply(hidden) @ self.rows.T
        empty = torch.arange(self.first, self.first + self.count) >= WORDS
        total = Sum.apply(scores.masked_fill(empty, -torch.inf).exp().sum(dim=1))
        own = (words >= self.first) & (words < self.first + self.count)
        place = (words - self.first).clamp(0, self.count - 1)
        right = Sum.apply(scores.gather(1, place[:, None])[:, 0] * own)
        return (total.log() - right).mean()


def main() -> None:
    dist.init_process_group("gloo")
    words = Words()
    torch.manual_seed(5)
    body = nn.Sequential(nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Tanh())
    optimizer = torch.optim.SGD([*body.parameters(), *words.parameters()], lr=0.1)
    draws = torch.Generator().manual_seed(7)
    for _ in range(10):
        text = torch.randint(WORDS, (BATCH,), generator=draws)
        loss = words(body(text), (text * 3 + 1) % WORDS)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
