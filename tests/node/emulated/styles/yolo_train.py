"""YOLO's idiom: an averaged model, warmup by hand, LambdaLR, several sizes of images, events that time a step."""

import contextlib
import copy
import math
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import lr_scheduler

LOCAL_RANK, RANK, WORLD_SIZE = (int(os.getenv(name, "-1")) for name in ("LOCAL_RANK", "RANK", "WORLD_SIZE"))


def select_device():
    properties = torch.cuda.get_device_properties(LOCAL_RANK)
    assert torch.cuda.device_count() > LOCAL_RANK, "insufficient CUDA devices for DDP command"
    print(f"CUDA:{LOCAL_RANK} ({properties.name}, {properties.total_memory / (1 << 20):.0f}MiB)", flush=True)
    torch.cuda.set_device(LOCAL_RANK)
    return torch.device("cuda", LOCAL_RANK)


@contextlib.contextmanager
def torch_distributed_zero_first(local_rank):
    if local_rank not in (-1, 0):
        dist.barrier(device_ids=[local_rank])
    yield
    if local_rank == 0:
        dist.barrier(device_ids=[0])


class ModelEMA:
    def __init__(self, model, decay=0.99, tau=10):
        self.ema, self.updates = copy.deepcopy(model).eval(), 0
        self.decay = lambda x: decay * (1 - math.exp(-x / tau))
        for parameter in self.ema.parameters():
            parameter.requires_grad_(False)

    def update(self, model):
        self.updates += 1
        decay, state = self.decay(self.updates), model.module.state_dict()
        for name, value in self.ema.state_dict().items():
            if value.dtype.is_floating_point:
                value *= decay
                value += (1 - decay) * state[name].detach()


class Conv(nn.Module):
    def __init__(self, c1, c2, stride=2):
        super().__init__()
        self.conv, self.bn = nn.Conv2d(c1, c2, 3, stride, 1, bias=False), nn.BatchNorm2d(c2, eps=1e-3, momentum=0.03)
        self.act = nn.SiLU(inplace=True)

    def forward(self, x):
        return self.act(self.bn(self.conv(x)))


def fuse_conv_and_bn(block):
    conv, bn = block.conv, block.bn
    fused = nn.Conv2d(conv.in_channels, conv.out_channels, 3, conv.stride, 1, bias=True)
    fused = fused.requires_grad_(False).to(conv.weight.device)
    scale = torch.diag(bn.weight.div(torch.sqrt(bn.eps + bn.running_var)))
    fused.weight.copy_(torch.mm(scale, conv.weight.clone().view(conv.out_channels, -1)).view(fused.weight.shape))
    fused.bias.copy_(bn.bias - bn.weight.mul(bn.running_mean).div(torch.sqrt(bn.running_var + bn.eps)))
    return nn.Sequential(fused, block.act)


device = select_device()
dist.init_process_group(backend="nccl" if dist.is_nccl_available() else "gloo")
with torch_distributed_zero_first(LOCAL_RANK):
    torch.manual_seed(0)
    torch.cuda.manual_seed_all(0)
model = nn.Sequential(Conv(3, 8), Conv(8, 16), nn.Conv2d(16, 5, 1)).to(device)
ema = ModelEMA(model) if RANK in (-1, 0) else None
model = nn.parallel.DistributedDataParallel(model, device_ids=[LOCAL_RANK], output_device=LOCAL_RANK, static_graph=True)
groups = [parameter for parameter in model.parameters() if parameter.ndim > 1]
optimizer = torch.optim.SGD([p for p in model.parameters() if p.ndim <= 1], lr=0.02, momentum=0.9, nesterov=True)
optimizer.add_param_group({"params": groups, "weight_decay": 5e-4})
scheduler = lr_scheduler.LambdaLR(optimizer, lr_lambda=lambda x: ((1 - math.cos(x * math.pi / 3)) / 2) * (0.1 - 1) + 1)
scaler = torch.cuda.amp.GradScaler(init_scale=128.0)
compute_loss = nn.BCEWithLogitsLoss(pos_weight=torch.tensor([1.5], device=device))
draws, sizes = torch.Generator().manual_seed(RANK), torch.Generator().manual_seed(0)
warmup, timings, last_opt_step = 4, [], -1
for epoch in range(3):
    optimizer.zero_grad()
    for i in range(3):
        ni = i + 3 * epoch
        images = torch.randint(0, 256, (4, 3, 32, 32), generator=draws, dtype=torch.uint8)
        images = images.to(device, non_blocking=True).float() / 255
        accumulate = max(1, round(1 + min(ni / warmup, 1.0)))
        if ni <= warmup:
            for index, group in enumerate(optimizer.param_groups):
                start = 0.1 if index == 0 else 0.0
                group["lr"] = start + (group["initial_lr"] - start) * ni / warmup
        size = int(torch.randint(2, 6, (1,), generator=sizes)) * 8
        images = nn.functional.interpolate(images, size=(size, size), mode="bilinear", align_corners=False)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        with torch.cuda.amp.autocast(True):
            pred = model(images)
            targets = (nn.functional.adaptive_avg_pool2d(images, pred.shape[-2:]).mean(1, keepdim=True) > 0.5).float()
            loss = compute_loss(pred, targets.expand_as(pred)) * WORLD_SIZE
        scaler.scale(loss).backward()
        if ni - last_opt_step >= accumulate:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), max_norm=10.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            if ema:
                ema.update(model)
            last_opt_step = ni
        end.record()
        end.synchronize()
        timings.append(begin.elapsed_time(end))
        if RANK in (-1, 0):
            memory = f"{torch.cuda.memory_reserved() / 1e9 if torch.cuda.is_available() else 0:.3g}G"
            print(f"{epoch}/{ni} {size} loss {loss.item() / WORLD_SIZE:.6f} {memory}", flush=True)
    scheduler.step()
    stop = [epoch == 2 if RANK == 0 else None]
    dist.broadcast_object_list(stop, 0)
    if stop[0]:
        break
assert min(timings) > 0
if ema:
    with torch.no_grad():
        fused = nn.Sequential(fuse_conv_and_bn(ema.ema[0]), fuse_conv_and_bn(ema.ema[1]), ema.ema[2])
        torch.testing.assert_close(fused(images), ema.ema(images), rtol=1e-3, atol=1e-3)
        half = copy.deepcopy(fused).half()(images.half())
    assert half.dtype == torch.float16
    assert half.device == device
torch.cuda.empty_cache()
dist.destroy_process_group()
