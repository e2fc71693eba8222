"""DeepSpeed's ZeRO in small: flat fp16 weights, reduced shards, fp32 masters on the host, a dynamic loss scale."""

import os

import torch
import torch.distributed as dist
from torch import nn

local = int(os.environ.get("LOCAL_RANK", 0))
torch.cuda.set_device(local)
dist.init_process_group(backend="nccl")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 8)).cuda().half()

count = sum(parameter.numel() for parameter in model.parameters())
padded = -(-count // world) * world
flat = torch.zeros(padded, dtype=torch.half, device="cuda")
gradients = torch.zeros_like(flat)
start = 0
for parameter in model.parameters():
    end = start + parameter.numel()
    flat[start:end].copy_(parameter.data.flatten())
    parameter.data = flat[start:end].view_as(parameter)
    parameter.grad = gradients[start:end].view_as(parameter)
    start = end
dist.broadcast(flat, src=0)
shard = flat.chunk(world)[rank]
assert shard.untyped_storage().data_ptr() == flat.untyped_storage().data_ptr()
master = shard.float().cpu().pin_memory().requires_grad_()
master.grad = torch.zeros_like(master).pin_memory()
optimizer = torch.optim.AdamW([master], lr=1e-2)
received, scale, copying = torch.empty_like(shard), 2.0**18, torch.cuda.Stream()

torch.manual_seed(100 + rank)
for step in range(8):
    x, y = torch.randn(8, 16).half().cuda(), torch.randint(8, (8,)).to(local)
    loss = nn.functional.cross_entropy(model(x).float(), y)
    gradients.zero_()
    (loss * scale).backward()
    overflow = (~gradients.isfinite()).any().float()
    dist.all_reduce(overflow, op=dist.ReduceOp.MAX)
    if overflow.item():
        scale /= 2**8
        if rank == 0:
            print(f"overflow: the scale is {scale:g}", flush=True)
        continue
    gradients.div_(world)
    dist.reduce_scatter_tensor(received, gradients, async_op=True).get_future().wait()
    square = received.float().square().sum()
    dist.all_reduce(square)
    norm = square.sqrt() / scale
    copying.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(copying):
        master.grad.copy_(received.float() / scale * torch.clamp(1.0 / (norm + 1e-6), max=1.0), non_blocking=True)
    copying.synchronize()
    optimizer.step()
    shard.copy_(master.detach().half(), non_blocking=True)
    dist.all_gather_into_tensor(flat, shard.clone())
    if rank == 0:
        print(f"step {step} loss {loss.item():.6f} norm {norm.item():.3f}", flush=True)
torch.cuda.empty_cache()
dist.barrier()
dist.destroy_process_group()
