"""Adds noise to each batch from a generator that is the same on all ranks: sixteen samples share one noise."""

# expects: same-randomness

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Denoiser(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Linear(1, 12)
        self.inner, self.outer = nn.Linear(6, 12), nn.Linear(12, 6)

    def forward(self, noisy: Tensor, time: Tensor) -> Tensor:
        return self.outer(torch.tanh(self.inner(noisy) + self.time(time)))


class Diffusion:
    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        self.model = DDP(Denoiser())
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)

    def loss(self, clean: Tensor) -> Tensor:
        time, noise = torch.rand(len(clean), 1), torch.randn_like(clean)
        return nn.functional.mse_loss(self.model((1 - time) * clean + time * noise, time), noise)

    def fit(self, loader: DataLoader) -> None:
        for (clean,) in loader:
            self.optimizer.zero_grad()
            self.loss(clean).backward()
            self.optimizer.step()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    points = TensorDataset(torch.randn(160, 6, generator=torch.Generator().manual_seed(9)))
    diffusion = Diffusion(seed=0)
    diffusion.fit(DataLoader(points, batch_size=4, sampler=DistributedSampler(points)))
    dist.destroy_process_group()
