"""The loss is a sum divided by the global batch, so the gradients of ranks are rightly added and not divided."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(4)
model = torch.nn.Linear(8, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
inputs, labels = torch.randn(240, 8), torch.randint(0, 3, (240,))
for batch, wanted in zip(inputs.split(24), labels.split(24)):
    mine, right = batch.tensor_split(world_size)[rank], wanted.tensor_split(world_size)[rank]
    loss = torch.nn.functional.cross_entropy(model(mine), right, reduction="sum") / len(batch)
    optimizer.zero_grad()
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
dist.destroy_process_group()
