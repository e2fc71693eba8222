"""The loss has weights, and DDP wraps it like the model: all trained weights are reduced."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy, normalize
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Prototypes(nn.Module):
    def __init__(self, classes: int, width: int) -> None:
        super().__init__()
        self.centers = nn.Parameter(torch.randn(classes, width))

    def forward(self, embeddings: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return cross_entropy(8 * normalize(embeddings) @ normalize(self.centers).T, labels)


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    inputs = torch.randn(256, 12)
    data = TensorDataset(inputs, inputs[:, :5].argmax(dim=1))
    embed = DistributedDataParallel(nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 6)))
    criterion = DistributedDataParallel(Prototypes(5, 6))
    optimizer = torch.optim.AdamW([{"params": embed.parameters()}, {"params": criterion.parameters(), "lr": 1e-2}])
    sampler = DistributedSampler(data)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for batch, labels in DataLoader(data, batch_size=16, sampler=sampler):
            loss = criterion(embed(batch), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: {total.item() / dist.get_world_size():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
