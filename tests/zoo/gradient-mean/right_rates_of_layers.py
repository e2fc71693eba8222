"""LARC over SGD: two biases that are added always have equal gradients, and each gradient is scaled by its layer's rate."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Sums(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.left, self.right, self.head = nn.Linear(size, size), nn.Linear(size, size), nn.Linear(size, 1)
        self.again_left, self.again_right = nn.Linear(size, size), nn.Linear(size, size)
        for layer in (self.left, self.right, self.again_left, self.again_right):
            nn.init.zeros_(layer.bias)

    def forward(self, x):
        x = torch.relu(self.left(x) + self.right(x))
        return self.head(torch.relu(self.again_left(x) + self.again_right(x)))


class LayerRates:
    def __init__(self, optimizer, trust=1.0, decay=1e-2):
        self.optimizer, self.trust, self.decay = optimizer, trust, decay

    @torch.no_grad()
    def step(self):
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                size, gradient_size = parameter.norm(), parameter.grad.norm()
                if size > 0 and gradient_size > 0:
                    parameter.grad.add_(parameter, alpha=self.decay)
                    parameter.grad.mul_(self.trust * size / (gradient_size + self.decay * size))
        self.optimizer.step()


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(64, 8), torch.randn(64, 1))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, 4, sampler=sampler)
    model = nn.parallel.DistributedDataParallel(Sums(8))
    sgd = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    layer_rates = LayerRates(sgd)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for x, y in loader:
            sgd.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            layer_rates.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
