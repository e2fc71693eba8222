"""Each rank draws from its own share, by the losses of its samples: another number of ranks rightly draws others."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Subset, TensorDataset


class Miner:
    def __init__(self, data: TensorDataset) -> None:
        self.data, self.share = data, torch.arange(dist.get_rank(), len(data), dist.get_world_size())
        self.weights = torch.ones(len(self.share))
        self.generator = torch.Generator().manual_seed(90 + dist.get_rank())

    def loader(self, batch: int) -> DataLoader:
        picks = torch.multinomial(self.weights, len(self.share), replacement=True, generator=self.generator)
        return DataLoader(Subset(self.data, self.share[picks].tolist()), batch_size=batch, drop_last=True)

    @torch.no_grad()
    def look(self, network: nn.Module) -> None:
        x, y = self.data[self.share]
        self.weights = nn.functional.cross_entropy(network(x), y, reduction="none") + 0.01


dist.init_process_group("gloo")
torch.manual_seed(4)
x = torch.randn(320, 10)
miner = Miner(TensorDataset(x, (x[:, 0] * x[:, 1] > 0).long()))
network = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 2))
model = DistributedDataParallel(network)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(5):
    for inputs, targets in miner.loader(16):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    miner.look(network)
dist.destroy_process_group()
