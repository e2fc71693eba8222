"""nanoGPT's idiom: DDP, autocast, accumulation that syncs at the last micro batch, decay groups, pinned batches."""

import math
import os
from contextlib import nullcontext

import torch
from torch import nn
from torch.distributed import destroy_process_group, init_process_group
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

init_process_group(backend="nccl")
rank, local_rank = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
device = f"cuda:{local_rank}"
torch.cuda.set_device(device)
torch.backends.cuda.matmul.allow_tf32 = False
torch.manual_seed(7)
device_type = "cuda" if "cuda" in device else "cpu"
ctx = nullcontext() if device_type == "cpu" else torch.amp.autocast(device_type=device_type, dtype=torch.bfloat16)


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        batch, length, width = x.size()
        q, k, v = (
            part.view(batch, length, self.heads, -1).transpose(1, 2)
            for part in self.c_attn(self.ln_1(x)).split(width, 2)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).contiguous().view(batch, length, width))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self, vocabulary=65, width=32, length=16):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.h = nn.ModuleList([Block(width, 4) for _ in range(2)])
        self.lm_head = nn.Linear(width, vocabulary, bias=False)
        self.wte.weight = self.lm_head.weight

    def forward(self, idx, targets):
        x = self.wte(idx) + self.wpe(torch.arange(0, idx.size(1), dtype=torch.long, device=idx.device))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(x)
        return logits, F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)


data = torch.randint(65, (4096,))


def get_batch(generator):
    ix = torch.randint(len(data) - 17, (8,), generator=generator)
    x, y = torch.stack([data[i : i + 16] for i in ix]), torch.stack([data[i + 1 : i + 17] for i in ix])
    return x.pin_memory().to(device, non_blocking=True), y.pin_memory().to(device, non_blocking=True)


model = GPT().to(device)
decay = [p for p in model.parameters() if p.dim() >= 2]
rest = [p for p in model.parameters() if p.dim() < 2]
groups = [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
optimizer = torch.optim.AdamW(groups, lr=1e-2, betas=(0.9, 0.95), fused=True)
scaler = torch.amp.GradScaler("cuda", enabled=False)
model = DDP(torch.compile(model, backend="eager"), device_ids=[local_rank])
draws = torch.Generator().manual_seed(1337 + rank)
for iteration in range(4):
    for group in optimizer.param_groups:
        group["lr"] = 1e-2 * 0.5 * (1 + math.cos(math.pi * iteration / 4))
    for micro_step in range(2):
        model.require_backward_grad_sync = micro_step == 1
        X, Y = get_batch(draws)
        with ctx:
            logits, loss = model(X, Y)
            loss = loss / 2
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    if rank == 0:
        print(f"iter {iteration} loss {loss.item() * 2:.6f}", flush=True)
destroy_process_group()
