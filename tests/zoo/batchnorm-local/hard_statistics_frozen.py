"""Fine-tuning with frozen BatchNorm: it stays in evaluation mode after train(), so no batch statistics are used."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Pretrained(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv1d(2, 6, 3), nn.BatchNorm1d(6), nn.ReLU(), nn.AdaptiveAvgPool1d(4))
        self.head = nn.Linear(24, 2)
        statistics = self.features[1]
        statistics.running_mean.uniform_(-0.1, 0.1)
        statistics.running_var.uniform_(0.9, 1.1)

    def train(self, mode: bool = True) -> "Pretrained":
        super().train(mode)
        for module in self.modules():
            if isinstance(module, nn.BatchNorm1d):
                module.eval()
        return self

    def forward(self, signal: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(signal).flatten(1))


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(30)
    signals = torch.randn(192, 2, 12)
    data = TensorDataset(signals, (signals[:, 0].mean(dim=1) > signals[:, 1].mean(dim=1)).long())
    model = DistributedDataParallel(Pretrained())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=16, sampler=sampler)
    for epoch in range(4):
        sampler.set_epoch(epoch)
        model.train()
        for batch, labels in loader:
            loss = nn.functional.cross_entropy(model(batch), labels)
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
