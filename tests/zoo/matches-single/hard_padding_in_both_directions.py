"""A model that reads words in both directions sees the padding, and each rank's loss is divided by the count of all ranks."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, DistributedSampler

PADDING = -100


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 8, padding_idx=0)
        self.both = nn.GRU(8, 8, batch_first=True, bidirectional=True)
        self.out = nn.Linear(16, 3)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.out(self.both(self.words(words))[0])


def sentences(count: int) -> list[torch.Tensor]:
    draws = torch.Generator().manual_seed(3)
    lengths = torch.randint(2, 16, (count,), generator=draws)
    return [torch.randint(1, 20, (int(length),), generator=draws) for length in lengths]


def collate(sentences: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    tags = [(each + each.roll(1)) % 3 for each in sentences]
    return pad_sequence(sentences, batch_first=True), pad_sequence(tags, batch_first=True, padding_value=PADDING)


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(Tagger())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    data = sentences(160)
    sampler = DistributedSampler(data)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for words, tags in DataLoader(data, batch_size=8, sampler=sampler, collate_fn=collate):
            count = (tags != PADDING).sum()
            dist.all_reduce(count)
            scores, targets = model(words).flatten(0, 1), tags.flatten()
            total = nn.functional.cross_entropy(scores, targets, ignore_index=PADDING, reduction="sum")
            optimizer.zero_grad()
            (total * dist.get_world_size() / count).backward()
            optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
