"""llm.c's reference script: manual set_device, a shard loader, ZeroRedundancyOptimizer, an all-reduced loss, timings."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import destroy_process_group, init_process_group
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP

assert torch.cuda.is_available(), "for now i think we need CUDA for DDP"
init_process_group(backend="nccl")
ddp_rank, ddp_local_rank, ddp_world_size = (int(os.environ[k]) for k in ("RANK", "LOCAL_RANK", "WORLD_SIZE"))
device = f"cuda:{ddp_local_rank}"
torch.cuda.set_device(device)
master_process = ddp_rank == 0
torch.manual_seed(42)
torch.set_float32_matmul_precision("highest")
B, T = 4, 16
tokens = torch.randint(50, (4000,))


class DistributedDataLoader:
    def __init__(self):
        self.position = ddp_rank * B * T

    def next_batch(self):
        part = tokens[self.position : self.position + B * T + 1]
        self.position += B * T * ddp_world_size
        return part[:-1].view(B, T), part[1:].view(B, T)


model = nn.Sequential(nn.Embedding(50, 32), nn.Linear(32, 64), nn.GELU(approximate="tanh"), nn.Linear(64, 50))
model.train()
model.to(device)
model = DDP(model, device_ids=[ddp_local_rank])
optimizer = ZeroRedundancyOptimizer(
    model.module.parameters(), optimizer_class=torch.optim.AdamW, lr=1e-2, betas=(0.9, 0.95), fused=True
)
loader = DistributedDataLoader()
torch.cuda.reset_peak_memory_stats()
for step in range(4):
    optimizer.zero_grad(set_to_none=True)
    lossf = torch.zeros(1, device=device)
    for micro_step in range(2):
        x, y = loader.next_batch()
        x, y = x.to(device), y.to(device)
        model.require_backward_grad_sync = micro_step == 1
        with torch.amp.autocast(device_type="cuda", dtype=torch.bfloat16, enabled=False):
            loss = nn.functional.cross_entropy(model(x).view(-1, 50), y.reshape(-1)) / 2
        lossf += loss.detach()
        loss.backward()
    dist.all_reduce(lossf, op=dist.ReduceOp.AVG)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    torch.cuda.synchronize()
    if master_process:
        print(f"step {step + 1:4d} | loss {lossf.item():.6f} | norm {norm:.4f}", flush=True)
if master_process:
    print(f"peak memory consumption: {torch.cuda.max_memory_allocated() // 1024 // 1024} MiB")
destroy_process_group()
