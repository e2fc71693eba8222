"""Population training with gossip: each rank keeps its own weights and mixes with a neighbor on a ring."""

import torch
import torch.distributed as dist
import torch.nn as nn

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(rank)
model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))
opt = torch.optim.SGD(model.parameters(), lr=[0.01, 0.02, 0.05, 0.1][rank % 4])
w = torch.tensor([1.0, -2.0, 3.0, 0.5])
for step in range(12):
    x = torch.randn(32, 4)
    y = (x @ w)[:, None]
    loss = (model(x) - y).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    with torch.no_grad():
        vec = nn.utils.parameters_to_vector(model.parameters())
        other = torch.empty_like(vec)
        ops = [dist.P2POp(dist.isend, vec, (rank + 1) % world), dist.P2POp(dist.irecv, other, (rank - 1) % world)]
        for r in dist.batch_isend_irecv(ops):
            r.wait()
        nn.utils.vector_to_parameters(0.5 * (vec + other), model.parameters())
score = torch.tensor([loss.item()])
every = [torch.empty(1) for _ in range(world)]
dist.all_gather(every, score)
if rank == 0:
    print("losses", [round(e.item(), 3) for e in every])
dist.destroy_process_group()
