"""Contrastive pairs: features gathered with gradients from all ranks, a learned logit scale that is clamped."""

import math
import os

import torch
import torch.distributed as dist
import torch.distributed.nn
from torch import nn
from torch.nn import functional as F

local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
dist.init_process_group(backend="nccl")
rank, size = dist.get_rank(), dist.get_world_size()


class CLIP(nn.Module):
    def __init__(self):
        super().__init__()
        self.visual, self.text = nn.Linear(48, 16), nn.EmbeddingBag(100, 16, mode="mean")
        self.logit_scale = nn.Parameter(torch.ones([]) * math.log(1 / 0.07))

    def forward(self, images, words):
        return (
            F.normalize(self.visual(images.flatten(1)), dim=-1),
            F.normalize(self.text(words), dim=-1),
            self.logit_scale.exp(),
        )


torch.manual_seed(0)
model = CLIP().cuda()
model = nn.parallel.DistributedDataParallel(model, device_ids=[local_rank], static_graph=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=True)
torch.manual_seed(rank)
for step in range(4):
    images = torch.randn(8, 3, 4, 4).cuda(non_blocking=True)
    words = torch.randint(100, (8, 5)).cuda(non_blocking=True)
    image, text, scale = model(images, words)
    all_image = torch.cat(torch.distributed.nn.all_gather(image), dim=0)
    all_text = torch.cat(torch.distributed.nn.all_gather(text), dim=0)
    logits = scale * all_image @ all_text.t()
    labels = torch.arange(len(logits), device=logits.device, dtype=torch.long)
    loss = (F.cross_entropy(logits, labels) + F.cross_entropy(logits.t(), labels)) / 2
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        model.module.logit_scale.clamp_(0, math.log(100))
    if rank == 0:
        print(f"step {step} loss {loss.item():.6f}", flush=True)
dist.destroy_process_group()
