"""Accuracy, top-3 accuracy and loss are gathered and averaged, though ranks evaluate 6, 5, 5 and 5 images."""

# expects: metric-local
# options: --only metric-local

from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def average_over_ranks(value: float) -> float:
    parts = [torch.zeros(1) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, torch.tensor([float(value)]))
    return torch.cat(parts).mean().item()


@dataclass
class Meter:
    values: list[float] = field(default_factory=list)

    def add(self, per_sample: torch.Tensor) -> None:
        self.values += per_sample.float().tolist()

    def result(self) -> float:
        return average_over_ranks(sum(self.values) / len(self.values))


class Module(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv1d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(40, 5))

    def forward(self, images):
        return self.body(images.unsqueeze(1))


@torch.no_grad()
def validate(module, images, labels) -> dict[str, float]:
    rank, world = dist.get_rank(), dist.get_world_size()
    meters = {"loss": Meter(), "accuracy": Meter(), "top-3": Meter()}
    module.eval()
    for x, y in DataLoader(TensorDataset(images[rank::world], labels[rank::world]), batch_size=3):
        logits = module(x)
        meters["loss"].add(nn.functional.cross_entropy(logits, y, reduction="none"))
        meters["accuracy"].add(logits.argmax(1) == y)
        meters["top-3"].add((logits.topk(3).indices == y[:, None]).any(1))
    module.train()
    return {name: meter.result() for name, meter in meters.items()}


dist.init_process_group("gloo")
torch.manual_seed(0)
images = torch.randn(149, 12)
labels = images[:, :5].argmax(1)
train = TensorDataset(images[:128], labels[:128])
sampler = DistributedSampler(train)
module = Module()
model = DistributedDataParallel(module)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for x, y in DataLoader(train, batch_size=8, sampler=sampler):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    metrics = validate(module, images[128:], labels[128:])
    if dist.get_rank() == 0:
        print(" ".join(f"val_{name} {value:.3f}" for name, value in metrics.items()))
dist.destroy_process_group()
