"""A convolutional network with GroupNorm, which normalizes each image alone, however the batch is divided."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def block(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(2, outputs), nn.ReLU(), nn.MaxPool2d(2))


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    images = torch.rand(256, 1, 8, 8)
    data = TensorDataset(images, (images.mean(dim=(1, 2, 3)) * 40 - 18).round().clamp(0, 3).long())
    sampler = DistributedSampler(data)
    model = DistributedDataParallel(nn.Sequential(block(1, 4), block(4, 8), nn.Flatten(), nn.Linear(32, 4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    model.train()
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for batch, labels in DataLoader(data, batch_size=8, sampler=sampler):
            loss = nn.functional.cross_entropy(model(batch), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        mean = loss.detach() / dist.get_world_size()
        dist.all_reduce(mean)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: {mean.item():.4f}")
    dist.destroy_process_group()


main()
