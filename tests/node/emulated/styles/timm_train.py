"""timm's idiom: a prefetcher with a stream of its own, channels_last, an averaged model, native amp, reduced metrics."""

import copy
import os
from contextlib import suppress
from functools import partial

import torch
import torch.distributed as dist
from torch import nn

local_rank = int(os.environ["LOCAL_RANK"])
device = torch.device("cuda", local_rank)
torch.cuda.set_device(device)
dist.init_process_group(backend="nccl", init_method="env://")


class PrefetchLoader:
    def __init__(self, loader, mean=(0.5, 0.4, 0.3), std=(0.2, 0.2, 0.3)):
        self.loader = loader
        self.mean = torch.tensor(mean, device=device).view(1, 3, 1, 1)
        self.std = torch.tensor(std, device=device).view(1, 3, 1, 1)

    def __iter__(self):
        stream = torch.cuda.Stream(device=device)
        first, (inputs, target) = True, (None, None)
        for next_input, next_target in self.loader:
            with partial(torch.cuda.stream, stream=stream)():
                next_input = next_input.to(device=device, non_blocking=True).sub_(self.mean).div_(self.std)
                next_target = next_target.to(device=device, non_blocking=True)
            if not first:
                yield inputs, target
            else:
                first = False
            torch.cuda.current_stream(device=device).wait_stream(stream)
            inputs, target = next_input, next_target
        yield inputs, target


torch.manual_seed(42 + dist.get_rank())
batches = [(torch.rand(8, 3, 8, 8), torch.randint(5, (8,))) for _ in range(4)]
torch.manual_seed(42)
model = nn.Sequential(
    nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.SiLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)
)
model = model.to(device).to(memory_format=torch.channels_last)
average = copy.deepcopy(model).eval()
model = nn.parallel.DistributedDataParallel(model, device_ids=[device], broadcast_buffers=False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
amp_autocast = (
    suppress if os.environ.get("NO_AMP") else partial(torch.autocast, device_type=device.type, dtype=torch.float16)
)
loss_scaler = torch.cuda.amp.GradScaler()
for update, (inputs, target) in enumerate(PrefetchLoader(batches)):
    inputs = inputs.contiguous(memory_format=torch.channels_last)
    with amp_autocast():
        loss = nn.functional.cross_entropy(model(inputs), target, label_smoothing=0.1)
    optimizer.zero_grad()
    loss_scaler.scale(loss).backward()
    loss_scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    loss_scaler.step(optimizer)
    loss_scaler.update()
    torch.cuda.synchronize()
    with torch.no_grad():
        for mean, value in zip(average.state_dict().values(), model.module.state_dict().values(), strict=True):
            mean.copy_(mean * 0.9 + value * 0.1)
    reduced = loss.detach().clone()
    dist.all_reduce(reduced, op=dist.ReduceOp.SUM)
    reduced /= dist.get_world_size()
    if dist.get_rank() == 0:
        print(f"Train: {update} loss {reduced.item():.6f}", flush=True)
dist.destroy_process_group()
