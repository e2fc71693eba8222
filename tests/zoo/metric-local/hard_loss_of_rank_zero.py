"""Rank 0 prints the loss of its own step, as nearly every script does: it is noisier, and not an evaluation."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(21)
    features = torch.randn(256, 10)
    data = TensorDataset(features, (features[:, :1] * features[:, 1:2]).tanh())
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=16, sampler=sampler)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for epoch in range(4):
        sampler.set_epoch(epoch)
        for step, (batch, target) in enumerate(loader):
            loss = nn.functional.mse_loss(model(batch), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if dist.get_rank() == 0 and step % 2 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}")
    del model
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
