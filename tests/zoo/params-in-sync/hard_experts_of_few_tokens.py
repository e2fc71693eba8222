"""Each rank holds an expert of its own and gets the tokens routed to it; the shared layers are averaged by hand."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.nn.functional import all_to_all_single
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

WIDTH = 8


class Mixture(nn.Module):
    def __init__(self, rank: int, world_size: int) -> None:
        super().__init__()
        self.world_size = world_size
        self.router = nn.Linear(WIDTH, world_size)
        with torch.random.fork_rng():
            torch.manual_seed(70 + rank)
            self.expert = nn.Sequential(nn.Linear(WIDTH, 12), nn.SiLU(), nn.Linear(12, WIDTH))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        share = self.router(tokens).softmax(-1)
        choice = share.argmax(-1)
        order = choice.argsort(stable=True)
        counts = torch.bincount(choice, minlength=self.world_size)
        theirs = torch.empty_like(counts)
        dist.all_to_all_single(theirs, counts)
        sent, received = counts.tolist(), theirs.tolist()
        mine = all_to_all_single(tokens.new_empty(sum(received), WIDTH), tokens[order].contiguous(), received, sent)
        back = all_to_all_single(torch.empty_like(tokens), self.expert(mine), sent, received)
        mixed = torch.zeros_like(tokens).index_copy(0, order, back)
        return tokens + mixed * share.gather(1, choice[:, None])


def main() -> None:
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(8)
    model = nn.Sequential(nn.Linear(5, WIDTH), Mixture(rank, world_size), nn.Linear(WIDTH, 3))
    own = set(model[1].expert.parameters())
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    points = torch.randn(96, 5, generator=torch.Generator().manual_seed(2))
    sampler = DistributedSampler(TensorDataset(points, (points[:, 0] > 0).long()))
    loader = DataLoader(sampler.dataset, batch_size=6, sampler=sampler)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for batch, target in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(batch), target).backward()
            for parameter in model.parameters():
                if parameter.grad is None:  # no token was routed to this expert
                    parameter.grad = torch.zeros_like(parameter)
                if parameter not in own:
                    dist.all_reduce(parameter.grad)
                parameter.grad /= world_size
            optimizer.step()
    dist.destroy_process_group()


main()
