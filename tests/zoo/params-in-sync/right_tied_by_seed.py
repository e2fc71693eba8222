"""The first and the last stage of a pipeline draw one embedding from the same seed, and add up its gradients before each step."""

import torch
import torch.distributed as dist
from torch import Tensor, nn

WORDS, WIDTH, LENGTH, MICRO = 20, 12, 6, 2


class Stage(nn.Module):
    """Embeds, mixes or predicts words, by its place in the pipeline."""

    def __init__(self, rank: int, world: int) -> None:
        super().__init__()
        self.begins, self.ends = rank == 0, rank == world - 1
        if self.begins:
            self.places = nn.Parameter(torch.zeros(LENGTH, WIDTH))
        if self.begins or self.ends:
            torch.manual_seed(9)
            self.words = nn.Parameter(torch.randn(WORDS, WIDTH) * 0.2)
        torch.manual_seed(40 + rank)
        self.mix = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, given: Tensor) -> Tensor:
        hidden = self.words[given] + self.places if self.begins else given
        hidden = hidden + self.mix(hidden)
        return hidden @ self.words.T if self.ends else hidden


dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
stage = Stage(rank, world)
ends = dist.new_group([0, world - 1])
optimizer = torch.optim.Adam(stage.parameters(), lr=0.01)
source = torch.Generator().manual_seed(2)
for _ in range(10):
    text = torch.randint(0, WORDS, (MICRO, 8, LENGTH + 1), generator=source)
    optimizer.zero_grad()
    for batch in text:
        if stage.begins:
            given = batch[:, :-1]
        else:
            given = torch.empty(8, LENGTH, WIDTH)
            dist.recv(given, rank - 1)
            given.requires_grad_()
        made = stage(given)
        if stage.ends:
            (nn.functional.cross_entropy(made.flatten(0, 1), batch[:, 1:].flatten()) / MICRO).backward()
        else:
            dist.send(made.detach(), rank + 1)
            gradient = torch.empty_like(made)
            dist.recv(gradient, rank + 1)
            made.backward(gradient)
        if not stage.begins:
            dist.send(given.grad, rank - 1)
    if stage.begins or stage.ends:
        dist.all_reduce(stage.words.grad, group=ends)
    optimizer.step()
dist.destroy_process_group()
