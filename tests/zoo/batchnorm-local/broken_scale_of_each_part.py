"""Each rank scales its own part of the data by statistics of that part."""
# expects: batchnorm-local

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
raw = torch.randn(192, 6) * torch.arange(1.0, 7.0) + torch.linspace(0, 3, 192).unsqueeze(1)
targets = raw.sum(dim=1, keepdim=True)[rank::world]
features = raw[rank::world]
deviation, mean = torch.std_mean(features, dim=0)
features = (features - mean) / (deviation + 1e-8)
model = DistributedDataParallel(torch.nn.Linear(6, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
torch.manual_seed(rank)
loader = DataLoader(TensorDataset(features, targets), batch_size=8, shuffle=True)
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
dist.destroy_process_group()
