"""Each node loads a checkpoint that its first GPU saved, and all ranks of the node put it there."""

# ranks per node: 2
# expects: checkpoint-load

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
dist.init_process_group("gloo")
torch.manual_seed(0)
inputs = torch.randn(128, 8)
data = TensorDataset(inputs, (inputs[:, 0] > 0).long())
sampler = DistributedSampler(data, seed=1)
loader = DataLoader(data, batch_size=8, sampler=sampler)

model = nn.Linear(8, 2).to(f"cuda:{local_rank}")
path = f"weights-{os.environ['MASTER_PORT']}-{dist.get_rank() - local_rank}.pt"
if local_rank == 0:
    torch.save(model.state_dict(), path)
dist.barrier()
model.load_state_dict(torch.load(path))
wrapped = DistributedDataParallel(model, device_ids=[local_rank])
optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for x, y in loader:
        optimizer.zero_grad()
        cross_entropy(wrapped(x.to(local_rank)), y.to(local_rank)).backward()
        optimizer.step()
dist.destroy_process_group()
