"""Recommendation: embedding tables sharded over ranks, pooled vectors exchanged, a dense part under DDP."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.nn.functional import all_gather

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
tables = [nn.EmbeddingBag(50, 8, mode="sum") for _ in range(2 * size)]
mine = nn.ModuleList(tables[2 * rank : 2 * rank + 2]).cuda()
over = nn.Sequential(nn.Linear(16 * size + 4, 16), nn.ReLU(), nn.Linear(16, 1)).cuda()
over = nn.parallel.DistributedDataParallel(over, device_ids=[torch.cuda.current_device()])
sparse, dense_part = torch.optim.Adagrad(mine.parameters(), lr=0.1), torch.optim.SGD(over.parameters(), lr=0.1)
for step in range(4):
    indices = torch.randint(50, (2 * size, 8, 3)).cuda(non_blocking=True)
    dense, clicked = torch.randn(8, 4).cuda(), torch.randint(2, (8,)).float().cuda()
    pooled = torch.cat([table(indices[2 * rank + i]) for i, table in enumerate(mine)], dim=1)
    features = torch.cat([*all_gather(pooled), dense], dim=1)
    loss = nn.functional.binary_cross_entropy_with_logits(over(features).squeeze(1), clicked)
    loss.backward()
    for optimizer in (sparse, dense_part):
        optimizer.step()
        optimizer.zero_grad()
    if rank == 0:
        print(f"step {step} loss {loss.item():.6f}", flush=True)
dist.destroy_process_group()
