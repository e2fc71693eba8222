"""Sets no seed: DDP broadcasts rank 0's parameters, and the sampler's order depends on the sampler's seed only."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Net(torch.nn.Module):
    """Attention over four features, beside a frozen random projection."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = torch.nn.Linear(4, 8)
        self.frozen.requires_grad_(False)
        self.attention = torch.nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = torch.nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.frozen(x)
        attended, _ = self.attention(hidden, hidden, hidden)
        return self.head((hidden + attended).mean(1))


def main() -> None:
    x = torch.randn(128, 5, 4, generator=torch.Generator().manual_seed(0))
    data = TensorDataset(x, x.amax((1, 2)).unsqueeze(1))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    model = DistributedDataParallel(Net())
    optimizer = torch.optim.SGD(
        [p for p in model.parameters() if p.requires_grad], lr=0.05, nesterov=True, momentum=0.9
    )
    for epoch in range(4):
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = (model(x) - y).abs().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main()
    dist.destroy_process_group()
