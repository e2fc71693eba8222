"""The loss comes from a method of the wrapped module: DDP's forward never runs, so backward reduces nothing."""
# expects: wrapper-bypassed
# also: params-in-sync, matches-single

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(12, 32), nn.ReLU())
        self.head = nn.Linear(32, 4)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(features))

    def training_step(self, features: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return cross_entropy(self(features), labels)


def main() -> None:
    dist.init_process_group("gloo")
    rank, world_size = int(os.environ["RANK"]), dist.get_world_size()
    torch.manual_seed(3)
    features = torch.randn(512, 12)
    data = TensorDataset(features, features[:, :4].argmax(dim=1))
    sampler = DistributedSampler(data, num_replicas=world_size, rank=rank)
    model = DistributedDataParallel(Classifier())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for batch in DataLoader(data, batch_size=16, sampler=sampler):
            loss = model.module.training_step(*batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        mean = loss.detach() / world_size
        dist.all_reduce(mean)
        if rank == 0:
            print(f"epoch {epoch}: loss {mean.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
