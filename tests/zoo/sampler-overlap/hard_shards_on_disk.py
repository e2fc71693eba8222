"""Each rank reads a different shard with the same indices as all other ranks: the samples still differ."""

from pathlib import Path
from tempfile import mkdtemp

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, RandomSampler


class Shard(Dataset):
    def __init__(self, file: Path) -> None:
        self.file = file

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        row = torch.load(self.file, weights_only=True)[index]
        return {"x": row[:-1], "y": row[-1:]}


def write_shard(rank: int) -> Path:
    file = Path(mkdtemp()) / "shard.pt"  # each rank has its own disk: equal paths hold different data
    torch.save(torch.randn(40, 5, generator=torch.Generator().manual_seed(rank)), file)
    return file


if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.manual_seed(123)
    model = DistributedDataParallel(nn.Linear(4, 1))
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
    data = Shard(write_shard(dist.get_rank()))
    loader = DataLoader(data, batch_size=5, sampler=RandomSampler(data), num_workers=1, persistent_workers=True)
    for epoch in range(2):
        for batch in loader:
            optimizer.zero_grad()
            loss = nn.functional.huber_loss(model(batch["x"]), batch["y"])
            loss.backward()
            optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean, op=dist.ReduceOp.SUM)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: loss {mean.item() / dist.get_world_size():.4f}", flush=True)
    dist.destroy_process_group()
