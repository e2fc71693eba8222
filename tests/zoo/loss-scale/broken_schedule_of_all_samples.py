"""The schedule of the learning rate counts the batches of all samples, but a rank has a share of them."""

# expects: loss-scale

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

BATCH, EPOCHS = 8, 3


def batches_in(loader):
    return -(-len(loader.dataset) // BATCH)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(2)
    inputs = torch.randn(256, 7)
    data = TensorDataset(inputs, inputs[:, :4].argmax(1))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=BATCH, sampler=sampler)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(7, 32), nn.ReLU(), nn.Linear(32, 4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=EPOCHS * batches_in(loader) + 1)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for features, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(features), labels).backward()
            optimizer.step()
            schedule.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
