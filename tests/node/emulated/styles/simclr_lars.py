"""SimCLR: the views of all ranks by an autograd function of its own, LARS, a cosine schedule, a momentum encoder's queue."""

import math

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("nccl")
local = dist.get_rank() % torch.cuda.device_count()
torch.cuda.set_device(local)


class Gather(torch.autograd.Function):
    """all_gather whose backward reduces the gradients and keeps those of this rank."""

    @staticmethod
    def forward(ctx, x):
        parts = [torch.zeros_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x.contiguous())
        return tuple(parts)

    @staticmethod
    def backward(ctx, *gradients):
        whole = torch.stack(gradients)
        dist.all_reduce(whole)
        return whole[dist.get_rank()]


class Lars(torch.optim.Optimizer):
    """Layer-wise rates, by torch._foreach_norm."""

    def __init__(self, params, lr, momentum=0.9, trust=0.02):
        super().__init__(params, {"lr": lr, "momentum": momentum, "trust": trust})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            gradients = [p.grad for p in params]
            weights, slopes = torch._foreach_norm(params), torch._foreach_norm(gradients)
            for p, g, weight, slope in zip(params, gradients, weights, slopes, strict=False):
                rate = torch.where((weight > 0) & (slope > 0), group["trust"] * weight / slope, torch.ones_like(weight))
                state = self.state[p].setdefault("momentum", torch.zeros_like(p))
                state.mul_(group["momentum"]).add_(g * rate)
                p.add_(state, alpha=-group["lr"])


torch.manual_seed(0)
encoder = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(inplace=True), nn.Linear(32, 8))
encoder = nn.SyncBatchNorm.convert_sync_batchnorm(encoder).cuda()
model = DistributedDataParallel(encoder, device_ids=[local])
optimizer = Lars(model.parameters(), lr=0.5)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5 * (1 + math.cos(math.pi * step / 8)))
queue = nn.functional.normalize(torch.randn(8, 32, generator=torch.Generator().manual_seed(1)).cuda(), dim=0)
begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
torch.manual_seed(1 + dist.get_rank())
for step in range(6):
    begin.record()
    x = torch.randn(8, 16)
    views = torch.cat([x + 0.1 * torch.randn_like(x), x * (torch.rand(8, 16) > 0.2)])
    views = views.pin_memory().to("cuda", non_blocking=True)
    one, two = nn.functional.normalize(model(views), dim=1).chunk(2)
    every, other = (torch.cat(Gather.apply(each)) for each in (one, two))
    logits = torch.cat([every @ other.T, every @ queue], 1) / 0.5
    loss = nn.functional.cross_entropy(logits, torch.arange(len(every), device=logits.device))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
    queue = torch.cat([queue[:, len(other) :], other.detach().T], 1)
    end.record()
    torch.cuda.synchronize()
    assert begin.elapsed_time(end) >= 0
    if dist.get_rank() == 0:
        print(f"step {step} loss {loss.item():.6f}", flush=True)
dist.destroy_process_group()
