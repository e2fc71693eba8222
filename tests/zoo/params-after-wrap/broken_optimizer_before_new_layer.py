"""The optimizer is built from a regressor whose output layer is then exchanged: nothing ever trains the new layer."""
# expects: params-after-wrap

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Regressor(nn.Module):
    def __init__(self, outputs):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(9, 18), nn.GELU())
        self.out = nn.Linear(18, outputs)

    def forward(self, x):
        return self.out(self.trunk(x))


dist.init_process_group("gloo")
torch.manual_seed(5)
model = Regressor(outputs=6)
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
model.out = nn.Linear(18, 2)
model = DistributedDataParallel(model)
readings = torch.randn(160, 9)
data = TensorDataset(readings, readings[:, :2] * readings[:, 2:4])
sampler = DistributedSampler(data)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for x, y in DataLoader(data, batch_size=8, sampler=sampler):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
dist.destroy_process_group()
