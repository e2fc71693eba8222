"""Each rank takes the mean over its own tokens, so tokens in short sequences get a larger weight."""

# expects: matches-single

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

PADDING = 0


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(30, 12, padding_idx=PADDING)
        self.reader = nn.GRU(12, 16, batch_first=True)
        self.head = nn.Linear(16, 4)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.reader(self.embedding(tokens))[0])


def sentences() -> list[torch.Tensor]:
    chosen = torch.Generator().manual_seed(1)
    lengths = torch.randint(3, 12, (128,), generator=chosen)
    return [torch.randint(1, 30, (int(length),), generator=chosen) for length in lengths]


def pad(batch: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    padded = nn.utils.rnn.pad_sequence([*batch, torch.zeros(12, dtype=torch.long)], batch_first=True)
    tokens = padded[:-1]  # all sequences of a batch have the same length
    return {"tokens": tokens, "tags": tokens % 4, "mask": tokens != PADDING}


def main() -> None:
    torch.manual_seed(6)
    data = sentences()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=8, sampler=sampler, collate_fn=pad)
    model = DistributedDataParallel(Tagger())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for batch in loader:
            scores = model(batch["tokens"]).flatten(0, 1)
            tags = batch["tags"].masked_fill(~batch["mask"], -100).flatten()
            loss = nn.functional.cross_entropy(scores, tags, ignore_index=-100)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main()
    dist.destroy_process_group()
