"""An iterable data set divides its records among all workers of all ranks."""

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Records(IterableDataset):
    """Windows of tokens from an endless, generated text."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        first, step = dist.get_rank() * workers + worker, dist.get_world_size() * workers
        for number in range(first, self.count, step):
            tokens = torch.randint(0, 50, (9,), generator=torch.Generator().manual_seed(number))
            yield {"ids": tokens[:-1], "next": tokens[1:]}


class Language(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        self.mixer = nn.GRU(16, 16, batch_first=True)
        self.head = nn.Linear(16, 50)

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        hidden, _ = self.mixer(self.embedding(ids))
        return nn.functional.cross_entropy(self.head(hidden).flatten(0, 1), targets.flatten())


def train() -> None:
    torch.manual_seed(9)
    model = DDP(Language())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for batch in DataLoader(Records(128), batch_size=4, num_workers=2):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(batch["ids"], batch["next"])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    train()
    dist.destroy_process_group()
