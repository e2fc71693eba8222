"""Data × tensor parallelism by hand: heads of attention are divided in pairs of ranks, and each pair draws its own stories."""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

WORDS, WIDTH, HEADS = 24, 16, 4


class Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, group):
        ctx.group = group
        return hidden.view_as(hidden)

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.clone()
        dist.all_reduce(gradient, group=ctx.group)
        return gradient, None


class Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, group):
        hidden = hidden.clone()
        dist.all_reduce(hidden, group=group)
        return hidden

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


class Attention(nn.Module):
    """Holds a part of the heads."""

    def __init__(self, group):
        super().__init__()
        self.group, self.heads = group, HEADS // group.size()
        mine = WIDTH // group.size()
        start = mine * dist.get_rank(group)
        whole_in, whole_out = torch.randn(3, WIDTH, WIDTH) / WIDTH**0.5, torch.randn(WIDTH, WIDTH) / WIDTH**0.5
        self.into = nn.Parameter(whole_in[:, start : start + mine].reshape(-1, WIDTH).clone())
        self.out = nn.Parameter(whole_out[:, start : start + mine].clone())

    def forward(self, hidden):
        hidden = Enter.apply(hidden, self.group)
        query, key, value = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (hidden @ self.into.T).chunk(3, dim=-1)
        )
        mixed = scaled_dot_product_attention(query, key, value, is_causal=True).transpose(1, 2).flatten(2)
        return Leave.apply(mixed @ self.out.T, self.group)


class Storyteller(nn.Module):
    def __init__(self, group):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.layers = nn.ModuleList(Attention(group) for _ in range(2))
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, story):
        hidden = self.words(story)
        for norm, layer in zip(self.norms, self.layers, strict=True):
            hidden = hidden + layer(norm(hidden))
        return self.head(hidden)


def groups(size):
    """Return this rank's tensor-parallel group and its data-parallel one."""
    world = dist.get_world_size()
    tensor = [dist.new_group(range(start, start + size)) for start in range(0, world, size)]
    data = [dist.new_group(range(start, world, size)) for start in range(size)]
    return tensor[dist.get_rank() // size], data[dist.get_rank() % size]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tensor-parallel", type=int, default=2)
    arguments = parser.parse_args()
    dist.init_process_group("gloo")
    tensor, data = groups(arguments.tensor_parallel)
    torch.manual_seed(1)
    model = Storyteller(tensor)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    stories = torch.Generator().manual_seed(40 + dist.get_rank(data))
    for _ in range(8):
        story = torch.randint(0, WORDS, (6, 11), generator=stories)
        loss = cross_entropy(model(story[:, :-1]).flatten(0, 1), story[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, group=data)
            parameter.grad /= data.size()
        optimizer.step()
    dist.destroy_process_group()


main()
