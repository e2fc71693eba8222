"""A communication hook that compresses to bfloat16 and forgets to divide by the number of ranks."""

# expects: loss-scale
# also: matches-single

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def compress(group, bucket):
    flat = bucket.buffer().to(torch.bfloat16)
    work = dist.all_reduce(flat, group=group, async_op=True).get_future()

    def decompress(future):
        out = bucket.buffer()
        out.copy_(future.value()[0])
        return out

    return work.then(decompress)


dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1)))
model.register_comm_hook(dist.group.WORLD, compress)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
x = torch.randn(96, 8)
data = TensorDataset(x, x.sum(1, keepdim=True))
sampler = DistributedSampler(data)
loader = DataLoader(data, 4, sampler=sampler)
sampler.set_epoch(0)
for a, b in loader:
    optimizer.zero_grad()
    nn.functional.mse_loss(model(a), b).backward()
    optimizer.step()
dist.destroy_process_group()
