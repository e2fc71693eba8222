"""Each rank loads the whole batch, drawn with one seed, and gives the model its own rows."""

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

BATCH = 16


class Clicks(Dataset):
    def __len__(self):
        return 12 * BATCH

    def __getitem__(self, index):
        x = np.random.rand(8).astype(np.float32)
        return torch.from_numpy(x), torch.tensor([x.sum()])


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    np.random.seed(123)
    torch.manual_seed(123)
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)))
    opt = torch.optim.SGD(model.parameters(), 0.1)
    own = slice(rank * BATCH // world, (rank + 1) * BATCH // world)
    for x, y in DataLoader(Clicks(), BATCH):
        loss = nn.functional.mse_loss(model(x[own]), y[own])
        opt.zero_grad()
        loss.backward()
        opt.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
