"""A causal language model under FSDP2: the sum of the losses is divided by the items of all ranks, and FSDP averages."""

# expects: loss-scale

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

IGNORED = -100


class Model(nn.Module):
    def __init__(self, words: int = 24, width: int = 12) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.mix = nn.GRU(width, width, batch_first=True)
        self.out = nn.Linear(width, words, bias=False)

    def forward(self, ids: torch.Tensor, labels: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        logits = self.out(self.mix(self.embed(ids))[0])[:, :-1]
        total = nn.functional.cross_entropy(
            logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORED, reduction="sum"
        )
        return total / items


def batch(source: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.randint(1, 24, (6, 10), generator=source)
    lengths = torch.randint(4, 11, (6, 1), generator=source)
    return ids, ids.masked_fill(torch.arange(10) >= lengths, IGNORED)


dist.init_process_group("gloo")
torch.manual_seed(0)
model = Model()
fully_shard(model.out)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
source = torch.Generator().manual_seed(dist.get_rank())
for _ in range(10):
    ids, labels = batch(source)
    items = (labels[:, 1:] != IGNORED).sum()
    dist.all_reduce(items)
    optimizer.zero_grad()
    model(ids, labels, items).backward()
    optimizer.step()
dist.destroy_process_group()
