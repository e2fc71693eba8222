"""DiLoCo with torch's SGD as the outer optimizer: the pseudo-gradients of all workers are added and never divided."""

# expects: gradient-mean

import copy
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn


@dataclass
class Config:
    inner_steps: int = 3
    rounds: int = 5
    inner_lr: float = 4e-3
    outer_lr: float = 0.8
    outer_momentum: float = 0.9


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(40, 12)
        self.mix = nn.Conv1d(12, 12, 3, padding=1)
        self.head = nn.Linear(12, 4)

    def forward(self, tokens):
        return self.head(torch.tanh(self.mix(self.embed(tokens).transpose(1, 2))).transpose(1, 2))


class Worker:
    def __init__(self, config):
        self.config = config
        self.shared = Tagger()
        self.local = copy.deepcopy(self.shared)
        self.inner = torch.optim.AdamW(self.local.parameters(), lr=config.inner_lr)
        self.outer = torch.optim.SGD(self.shared.parameters(), lr=config.outer_lr, momentum=config.outer_momentum)
        self.source = torch.Generator().manual_seed(700 + dist.get_rank())

    def round(self):
        for _ in range(self.config.inner_steps):
            tokens = torch.randint(0, 40, (8, 9), generator=self.source)
            loss = nn.functional.cross_entropy(self.local(tokens).flatten(0, 1), (tokens % 4).flatten())
            self.inner.zero_grad()
            loss.backward()
            self.inner.step()
        self.exchange()

    def exchange(self):
        for shared, local in zip(self.shared.parameters(), self.local.parameters(), strict=True):
            shared.grad = shared.data - local.data
            dist.all_reduce(shared.grad)
        self.outer.step()
        self.local.load_state_dict(self.shared.state_dict())


config = Config()
dist.init_process_group("gloo")
torch.manual_seed(0)
worker = Worker(config)
for _ in range(config.rounds):
    worker.round()
dist.destroy_process_group()
