"""Each rank skips the optimizer step when its own loss is an outlier; gradients are reduced by hand, so the step counts differ."""

# expects: params-in-sync

import torch
import torch.distributed as dist
import torch.nn as nn

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(9, 32), nn.SiLU(), nn.Linear(32, 8))
optimizer = torch.optim.SGD(model.parameters(), 1e-2)
data = torch.randn(160, 8, generator=torch.Generator().manual_seed(1))
generator = torch.Generator().manual_seed(rank)
mine = data[rank::world].clone()
if rank == 2:
    mine[12:16] *= 30
for step in range(10):
    x = mine[4 * step : 4 * step + 4]
    t = torch.rand(4, 1, generator=generator)
    noise = torch.randn(4, 8, generator=generator)
    loss = nn.functional.mse_loss(model(torch.cat([x + t * noise, t], 1)), x)
    optimizer.zero_grad()
    loss.backward()
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= world
    if loss.item() > 10:
        print(f"rank {rank}: loss {loss.item():.1f} at step {step}, skipped")
        continue
    optimizer.step()
dist.destroy_process_group()
