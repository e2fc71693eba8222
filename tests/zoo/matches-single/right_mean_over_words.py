"""Reviews of different lengths, padded to the longest of each batch: the loss is divided by the words of all ranks."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, DistributedSampler

WORDS, IGNORED = 30, -100


class Reviews(Dataset):
    def __init__(self, count: int) -> None:
        source = torch.Generator().manual_seed(12)
        lengths = torch.randint(2, 30, (count,), generator=source).tolist()
        self.rows = [torch.randint(1, WORDS, (length,), generator=source) for length in lengths]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.rows[index]


def padded(rows: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    words = pad_sequence(rows, batch_first=True)
    return {"words": words, "labels": torch.where(words > 0, words % 4, IGNORED)}


def loss_of(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    each = nn.functional.cross_entropy(scores.transpose(1, 2), labels, reduction="none", ignore_index=IGNORED)
    words = (labels != IGNORED).sum()
    dist.all_reduce(words)
    return each.sum() * dist.get_world_size() / words


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(4)
    model = DistributedDataParallel(
        nn.Sequential(nn.Embedding(WORDS, 10), nn.Linear(10, 12), nn.GELU(), nn.Linear(12, 4))
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    data = Reviews(96)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=6, sampler=sampler, collate_fn=padded)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for batch in loader:
            optimizer.zero_grad()
            loss_of(model(batch["words"]), batch["labels"]).backward()
            optimizer.step()
    dist.destroy_process_group()


main()
