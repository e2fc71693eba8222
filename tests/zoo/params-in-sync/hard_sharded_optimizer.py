"""ZeroRedundancyOptimizer shards the optimizer's state over ranks: the state differs, but the weights do not."""

import gc

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def train() -> None:
    torch.manual_seed(0)
    inputs = torch.randn(256, 6)
    data = TensorDataset(inputs, inputs.amax(dim=1, keepdim=True))
    model = DistributedDataParallel(nn.Sequential(*(nn.Linear(6, 6) for _ in range(4)), nn.Linear(6, 1)))
    optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.Adam, lr=1e-2)
    sampler = DistributedSampler(data)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for batch, targets in DataLoader(data, batch_size=16, sampler=sampler):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(batch), targets)
            loss.backward()
            optimizer.step()
        shown = loss.detach() / dist.get_world_size()
        dist.all_reduce(shown)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: {shown.item():.4f}")


dist.init_process_group("gloo")
train()
gc.collect()
dist.destroy_process_group()
