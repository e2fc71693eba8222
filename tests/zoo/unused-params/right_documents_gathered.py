"""Retrieval with two towers: the gather of all documents returns their gradient to each rank."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.nn.functional import all_gather
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Towers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.question, self.document = nn.Linear(9, 6), nn.Linear(12, 6)

    def forward(self, question: torch.Tensor, document: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        unit = nn.functional.normalize
        return unit(self.question(question), dim=1), unit(self.document(document), dim=1)


def from_all_ranks(own: torch.Tensor) -> torch.Tensor:
    return torch.cat(all_gather(own))


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(3)
    questions = torch.randn(128, 9)
    data = TensorDataset(questions, torch.cat([questions, torch.randn(128, 3)], 1))
    sampler = DistributedSampler(data)
    towers = DistributedDataParallel(Towers())
    optimizer = torch.optim.Adam(towers.parameters(), lr=1e-2)
    for question, document in DataLoader(data, batch_size=8, sampler=sampler):
        asked, told = towers(question, document)
        scores = 8 * asked @ from_all_ranks(told).T
        own = torch.arange(len(asked)) + dist.get_rank() * len(asked)
        optimizer.zero_grad()
        nn.functional.cross_entropy(scores, own).backward()
        optimizer.step()
    dist.destroy_process_group()


main()
