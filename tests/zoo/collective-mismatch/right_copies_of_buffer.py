"""A learner receives what each actor has seen into one buffer, and puts copies of the buffer into its batch."""

import torch
import torch.distributed as dist
from torch import Tensor, nn

SEEN, WIDTH, STEPS = 16, 6, 12
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()


def collect(buffer: Tensor) -> Tensor:
    parts = []
    for actor in range(1, world):
        dist.recv(buffer, actor)
        parts.append(buffer.clone())
    return torch.cat(parts)


torch.manual_seed(0)
model = nn.Linear(WIDTH, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
source, buffer = torch.Generator().manual_seed(rank), torch.empty(SEEN, WIDTH)
for _ in range(STEPS):
    if rank:
        dist.send(torch.randn(SEEN, WIDTH, generator=source) + rank, 0)
        continue
    batch = collect(buffer)
    loss = (model(batch).squeeze(1) - batch.sum(1)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
dist.barrier()
dist.destroy_process_group()
