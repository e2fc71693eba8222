"""The validation set is divided among ranks, and rank 0 prints the accuracy on its quarter as the model's accuracy."""

# expects: metric-local

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def make(count: int, seed: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(count, 8, generator=generator)
    return TensorDataset(features, (features @ torch.linspace(-1, 1, 8) > 0).long())


@torch.no_grad()
def evaluate(model: torch.nn.Module, loader: DataLoader) -> float:
    model.eval()
    hits = total = 0
    for features, labels in loader:
        hits += (model(features).argmax(1) == labels).sum().item()
        total += len(labels)
    model.train()
    return hits / total


dist.init_process_group("gloo")
torch.manual_seed(0)
model = DDP(torch.nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
train, valid = make(240, 1), make(80, 2)
train_sampler = DistributedSampler(train)
train_loader = DataLoader(train, batch_size=12, sampler=train_sampler)
valid_loader = DataLoader(valid, batch_size=10, sampler=DistributedSampler(valid, shuffle=False))
for epoch in range(3):
    train_sampler.set_epoch(epoch)
    for features, labels in train_loader:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(features), labels).backward()
        optimizer.step()
    accuracy = evaluate(model, valid_loader)
    if dist.get_rank() == 0:
        print(f"epoch {epoch}: validation accuracy {accuracy:.3f}")
dist.destroy_process_group()
