"""apex's ImageNet example: a prefetcher on a stream of its own, channels_last, bf16, a foreach average of the model."""

import copy
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

local = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local)
dist.init_process_group("nccl", init_method="env://")
device = torch.device("cuda", local)


class Prefetcher:
    """Copies and normalizes the next batch while the current one is used."""

    def __init__(self, loader):
        self.loader, self.stream = iter(loader), torch.cuda.Stream()
        self.mean = torch.tensor([0.5, 0.4, 0.3], device=device).view(1, 3, 1, 1)
        self.std = torch.tensor([0.2, 0.2, 0.3]).cuda().view(1, 3, 1, 1)
        self.preload()

    def preload(self):
        try:
            self.input, self.target = next(self.loader)
        except StopIteration:
            self.input = None
            return
        with torch.cuda.stream(self.stream):
            self.input = self.input.cuda(non_blocking=True).to(memory_format=torch.channels_last)
            self.target = self.target.cuda(non_blocking=True)
            self.input = self.input.float().sub_(self.mean).div_(self.std)

    def next(self):
        torch.cuda.current_stream().wait_stream(self.stream)
        input, target = self.input, self.target
        if input is not None:
            input.record_stream(torch.cuda.current_stream())
            target.record_stream(torch.cuda.current_stream())
            self.preload()
        return input, target


class ModelEma(nn.Module):
    """timm's ModelEmaV3: averages with foreach."""

    def __init__(self, model, decay):
        super().__init__()
        self.module, self.decay = copy.deepcopy(model).eval().requires_grad_(False), decay

    @torch.no_grad()
    def update(self, model):
        mine, theirs = list(self.module.state_dict().values()), list(model.state_dict().values())
        floats = [(a, b) for a, b in zip(mine, theirs, strict=False) if a.is_floating_point()]
        torch._foreach_lerp_([a for a, _ in floats], [b for _, b in floats], weight=1 - self.decay)
        for a, b in zip(mine, theirs, strict=False):
            if not a.is_floating_point():
                a.copy_(b)


torch.manual_seed(0)
data = TensorDataset(torch.rand(64, 3, 8, 8), torch.randint(5, (64,)))
sampler = DistributedSampler(data, shuffle=False)
loader = DataLoader(data, batch_size=8, sampler=sampler, pin_memory=True, num_workers=1, persistent_workers=True)
model = nn.Sequential(
    nn.Conv2d(3, 16, 3, padding=1),
    nn.BatchNorm2d(16),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(16, 5),
)
model = nn.SyncBatchNorm.convert_sync_batchnorm(model).to(device, memory_format=torch.channels_last)
average = ModelEma(model, 0.9)
model = DistributedDataParallel(model, device_ids=[local], gradient_as_bucket_view=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
for epoch in range(2):
    sampler.set_epoch(epoch)
    prefetcher = Prefetcher(loader)
    input, target = prefetcher.next()
    while input is not None:
        assert input.is_contiguous(memory_format=torch.channels_last)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(input), target, label_smoothing=0.1)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        torch.cuda.synchronize()
        average.update(model.module)
        reduced = loss.detach().clone()
        dist.all_reduce(reduced, op=dist.ReduceOp.AVG)
        if dist.get_rank() == 0:
            print(f"epoch {epoch} loss {reduced.item():.6f}", flush=True)
        input, target = prefetcher.next()
dist.destroy_process_group()
