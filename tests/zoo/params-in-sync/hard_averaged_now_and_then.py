"""Local SGD: ranks train separately for four steps, then average their weights. In between, they rightly differ."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

EVERY = 4


@torch.no_grad()
def average(parameters: list[nn.Parameter]) -> None:
    flat = torch.cat([parameter.flatten() for parameter in parameters])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for parameter, values in zip(parameters, flat.split([parameter.numel() for parameter in parameters])):
        parameter.copy_(values.view_as(parameter))


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(2)
    inputs = torch.randn(512, 8)
    data = TensorDataset(inputs, inputs[:, :1] * inputs[:, 1:2])
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)))
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=0.05)
    sampler = DistributedSampler(data)
    steps = 0
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for batch, targets in DataLoader(data, batch_size=16, sampler=sampler):
            with model.no_sync():
                loss = nn.functional.mse_loss(model(batch), targets)
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            steps += 1
            if steps % EVERY == 0:
                average(parameters)
        shown = loss.detach() / dist.get_world_size()
        dist.all_reduce(shown)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: {shown.item():.4f}")
    dist.destroy_process_group()


main()
