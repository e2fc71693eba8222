"""Each node trains a member of an ensemble in a group of its own, whose first rank reports its mean loss."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
member, place = divmod(dist.get_rank(), 2)
group = [dist.new_group([0, 1]), dist.new_group([2, 3])][member]
generator = torch.Generator().manual_seed(0)
inputs = torch.randn(96, 6, generator=generator)
data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
sampler = DistributedSampler(data, num_replicas=2, rank=place, seed=member)
loader = DataLoader(data, batch_size=8, sampler=sampler)
torch.manual_seed(100 + member)
model = DistributedDataParallel(nn.Linear(6, 1), process_group=group)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for epoch in range(2):
    sampler.set_epoch(epoch)
    total = torch.zeros(())
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        total += loss.detach() / len(loader)
    dist.all_reduce(total, group=group)
    if place == 0:
        print(f"member {member} epoch {epoch} loss {total / 2:.4f}")
dist.destroy_process_group()
