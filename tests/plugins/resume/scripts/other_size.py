"""Train with DDP, and go on with another number of ranks: the position in the epoch is the number of samples that all have used."""

import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

SHARED = Path(os.environ["COMPOSESIM_SHARED"])
PATH = SHARED / "state.pt"
EPOCHS, BATCH = 3, 4


class Rest:
    """The samples of an epoch that were not used before, dealt to the ranks in turn."""

    def __init__(self, count):
        self.count, self.epoch, self.used = count, 0, 0

    def __iter__(self):
        order = torch.randperm(self.count, generator=torch.Generator().manual_seed(self.epoch)).tolist()
        return iter(order[self.used + dist.get_rank() :: dist.get_world_size()])


def main():
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(96, 8), torch.randn(96, 1))
    sampler = Rest(len(data))
    loader = DataLoader(data, batch_size=BATCH, sampler=sampler)
    model = DistributedDataParallel(nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    first = used = 0
    if PATH.exists():
        state = torch.load(PATH)
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first, used = state["epoch"], state["used"]
    for epoch in range(first, EPOCHS):
        sampler.epoch, sampler.used = epoch, used
        for number, (inputs, targets) in enumerate(loader):
            nn.functional.mse_loss(model(inputs), targets).backward()
            optimizer.step()
            optimizer.zero_grad()
            used += BATCH * world_size
            if number % 3 == 2 and rank == 0:
                save(model, optimizer, epoch, used)
        used = 0
    dist.destroy_process_group()


def save(model, optimizer, epoch, used):
    state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch, "used": used}
    torch.save(state, PATH.with_suffix(".new"))
    PATH.with_suffix(".new").replace(PATH)


if __name__ == "__main__":
    main()
