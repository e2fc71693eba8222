"""Training uses the wrapper; the inner module serves for a penalty in the same backward, a moving average, and evaluation."""

import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Autoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(10, 16), nn.Tanh(), nn.Linear(16, 4))
        self.decoder = nn.Linear(4, 10)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.decoder(self.encoder(inputs))

    def encode(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.encoder(inputs)


@torch.no_grad()
def update_average(average: nn.Module, model: nn.Module, decay: float = 0.9) -> None:
    for slow, fast in zip(average.parameters(), model.parameters()):
        slow.lerp_(fast, 1 - decay)


def evaluate(model: nn.Module, held_out: torch.Tensor) -> torch.Tensor:
    model.eval()
    share = held_out[dist.get_rank() :: dist.get_world_size()]
    with torch.inference_mode():
        errors = torch.stack([(model(share) - share).square().sum(), model.encode(share).abs().sum()])
    errors = errors.clone()
    dist.all_reduce(errors)
    model.train()
    return errors / len(held_out)


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    samples, held_out = torch.randn(256, 10), torch.randn(64, 10)
    model = DistributedDataParallel(Autoencoder())
    average = copy.deepcopy(model.module)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    data = TensorDataset(samples)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=16, sampler=sampler)
    for epoch in range(4):
        sampler.set_epoch(epoch)
        for (inputs,) in loader:
            loss = (model(inputs) - inputs).square().mean()
            loss = loss + 1e-4 * sum(weight.square().sum() for weight in model.module.encoder.parameters())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            update_average(average, model.module)
        error, size = evaluate(average, held_out).tolist()
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: error {error:.4f}, code {size:.4f}")
    dist.destroy_process_group()


main()
