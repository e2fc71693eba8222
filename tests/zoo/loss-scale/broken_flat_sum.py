"""FullyShardedDataParallel takes the mean over ranks of a loss that is a sum over samples."""

# expects: loss-scale
# also: matches-single

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(0)
inputs = torch.randn(128, 8)
data = TensorDataset(inputs, (inputs[:, 0] > 0).long())
sampler = DistributedSampler(data, seed=1)
loader = DataLoader(data, batch_size=8, sampler=sampler)
layers = nn.Sequential(nn.Linear(8, 33), nn.ReLU(), nn.Linear(33, 2))
model = FullyShardedDataParallel(layers, device_id=torch.device("cpu"), use_orig_params=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for x, y in loader:
        optimizer.zero_grad()
        cross_entropy(model(x), y, reduction="sum").backward()
        optimizer.step()
dist.destroy_process_group()
