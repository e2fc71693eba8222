"""All ranks use one seed until the models exist, then one per rank: dropout drops different units on every rank."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(42)
    data = TensorDataset(torch.randn(128, 8), torch.randint(0, 3, (128,)))
    sampler = DistributedSampler(data)
    model = DDP(nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 3)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(42 + dist.get_rank())
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
