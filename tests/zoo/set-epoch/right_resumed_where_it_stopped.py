"""Writes a checkpoint, starts again from it in the same process, and counts on from the epoch that it names."""

from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

CHECKPOINT = Path("training.pt")


def fit(loader: DataLoader, epochs: int) -> None:
    network = nn.Linear(6, 3)
    state = torch.load(CHECKPOINT) if CHECKPOINT.exists() else {"epoch": 0}
    if "weights" in state:
        network.load_state_dict(state["weights"])
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    first = state["epoch"]
    for epoch in range(first, first + epochs):
        loader.sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    dist.barrier()
    if dist.get_rank() == 0:
        torch.save({"weights": network.state_dict(), "epoch": first + epochs}, CHECKPOINT)
    dist.barrier()


dist.init_process_group("gloo")
torch.manual_seed(1)
data = TensorDataset(torch.randn(96, 6), torch.randint(0, 3, (96,)))
loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data))
fit(loader, 2)
fit(loader, 2)
dist.destroy_process_group()
