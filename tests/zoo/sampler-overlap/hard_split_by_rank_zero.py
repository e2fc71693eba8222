"""Rank 0 reads the global batch, broadcasts it, and every rank takes its slice, as dispatch_batches of Accelerate does."""

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset


class DispatchLoader:
    def __init__(self, loader):
        self.loader = loader

    def __iter__(self):
        rank, world = dist.get_rank(), dist.get_world_size()
        source = iter(self.loader) if rank == 0 else None
        size = self.loader.batch_size
        while True:
            batch = next(source, None) if rank == 0 else None
            more = torch.tensor([batch is not None], dtype=torch.uint8)
            dist.broadcast(more, src=0)
            if not more.item():
                return
            x, y = batch if rank == 0 else (torch.empty(size, 8), torch.empty(size, dtype=torch.long))
            dist.broadcast(x, src=0)
            dist.broadcast(y, src=0)
            share = len(x) // world
            yield x[rank * share : (rank + 1) * share], y[rank * share : (rank + 1) * share]


class Accelerator:
    def __init__(self):
        dist.init_process_group("gloo")
        self.is_main_process = dist.get_rank() == 0

    def prepare(self, model, optimizer, loader):
        return DistributedDataParallel(model), optimizer, DispatchLoader(loader)

    def backward(self, loss):
        loss.backward()

    def gather(self, tensor):
        out = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
        dist.all_gather(out, tensor.contiguous())
        return torch.cat(out)


accelerator = Accelerator()
torch.manual_seed(42)
net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
data = TensorDataset(torch.randn(128, 8), torch.randint(0, 3, (128,)))
loader = DataLoader(data, 16, shuffle=True)
model, optimizer, loader = accelerator.prepare(net, torch.optim.Adam(net.parameters(), 1e-2), loader)
for epoch in range(1):
    correct = seen = 0
    for x, y in loader:
        optimizer.zero_grad()
        logits = model(x)
        accelerator.backward(nn.functional.cross_entropy(logits, y))
        optimizer.step()
        predictions, labels = accelerator.gather(logits.argmax(1)), accelerator.gather(y)
        correct += (predictions == labels).sum().item()
        seen += len(labels)
    if accelerator.is_main_process:
        print(f"accuracy {correct / seen:.3f} of {seen}")
dist.destroy_process_group()
