"""Lightning Fabric's idiom: seed, launch, setup, wrapped modules and optimizers, backward through a precision plugin."""

import os
from collections.abc import Mapping
from contextlib import contextmanager, nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def move_data_to_device(batch, device):
    if isinstance(batch, Mapping):
        return {name: move_data_to_device(value, device) for name, value in batch.items()}
    if isinstance(batch, (list, tuple)):
        return type(batch)(move_data_to_device(value, device) for value in batch)
    if not isinstance(batch, torch.Tensor):
        return batch
    return batch.to(device, **({} if device.type == "cpu" else {"non_blocking": True}))


class MixedPrecision:
    def __init__(self, precision):
        self.scaler = torch.amp.GradScaler("cuda", init_scale=1024.0) if precision == "16-mixed" else None
        self.dtype = torch.bfloat16 if precision == "bf16-mixed" else torch.half

    def forward_context(self):
        return torch.autocast("cuda", dtype=self.dtype)


class FabricModule(nn.Module):
    def __init__(self, forward_module, precision, original):
        super().__init__()
        self._forward_module, self._original, self._precision = forward_module, original, precision

    def forward(self, *args):
        with self._precision.forward_context():
            output = self._forward_module(*args)
        return output.to(torch.get_default_dtype())


class Fabric:
    def __init__(self, precision):
        self.precision = MixedPrecision(precision)

    def launch(self):
        self.device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        assert self.device.index < torch.cuda.device_count()
        torch.cuda.set_device(self.device)
        if torch.cuda.get_device_capability(self.device) >= (8, 0):
            torch.set_float32_matmul_precision("highest")
        if not dist.is_initialized():
            dist.init_process_group("nccl", device_id=self.device)
        self.is_global_zero = dist.get_rank() == 0

    @contextmanager
    def init_module(self):
        with self.device, torch.random.fork_rng(devices=[self.device]):
            yield

    def setup(self, module, optimizer):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            wrapped = DistributedDataParallel(module, device_ids=[self.device.index], gradient_as_bucket_view=True)
        torch.cuda.current_stream().wait_stream(side)
        return FabricModule(wrapped, self.precision, module), optimizer

    def setup_dataloaders(self, loader):
        sampler = DistributedSampler(loader.dataset, shuffle=False)
        for batch in DataLoader(loader.dataset, loader.batch_size, sampler=sampler, pin_memory=True):
            yield move_data_to_device(batch, self.device)

    def no_backward_sync(self, module, enabled):
        return module._forward_module.no_sync() if enabled else nullcontext()

    def backward(self, tensor):
        (self.precision.scaler.scale(tensor) if self.precision.scaler else tensor).backward()

    def step(self, module, optimizer):
        if self.precision.scaler:
            self.precision.scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(module.parameters(), 1.0, error_if_nonfinite=False)
        if self.precision.scaler:
            self.precision.scaler.step(optimizer)
            self.precision.scaler.update()
        else:
            optimizer.step()

    def all_gather(self, tensor):
        gathered = [torch.zeros_like(tensor) for _ in range(dist.get_world_size())]
        dist.all_gather(gathered, tensor)
        return torch.stack(gathered)


for precision in ("bf16-mixed", "16-mixed"):
    torch.manual_seed(1)
    torch.cuda.manual_seed_all(1)
    fabric = Fabric(precision)
    fabric.launch()
    with fabric.init_module():
        model = nn.Sequential(nn.Linear(12, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4))
    assert {parameter.device for parameter in model.parameters()} == {fabric.device}
    weights = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=weights) * 0.3)
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    data = TensorDataset(torch.randn(48, 12, generator=weights), torch.randint(4, (48,), generator=weights))
    for step, (x, y) in enumerate(fabric.setup_dataloaders(DataLoader(data, batch_size=4))):
        accumulating = step % 2 == 0
        with fabric.no_backward_sync(model, accumulating):
            loss = nn.functional.cross_entropy(model(x), y)
            fabric.backward(loss / 2)
        if not accumulating:
            fabric.step(model, optimizer)
            optimizer.zero_grad()
        mean = fabric.all_gather(loss.detach()).mean()
        if fabric.is_global_zero:
            print(f"{precision} {step} loss {mean.item():.6f}", flush=True)
    stats = torch.cuda.memory_stats(fabric.device)
    assert stats["allocated_bytes.all.peak"] >= stats["allocated_bytes.all.current"] > 0
    del model, optimizer
    torch.cuda.empty_cache()
dist.destroy_process_group()
