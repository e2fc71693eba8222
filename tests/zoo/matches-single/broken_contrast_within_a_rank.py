"""A contrastive loss with negatives from the rank's own batch only: more ranks mean fewer negatives."""

# expects: matches-single

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy, normalize
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Views(Dataset):
    """Two noisy views of each point, drawn once."""

    def __init__(self) -> None:
        noise = torch.Generator().manual_seed(8)
        points = torch.randn(192, 6, generator=noise)
        self.pairs = [
            (p + 0.1 * torch.randn(6, generator=noise), p + 0.1 * torch.randn(6, generator=noise)) for p in points
        ]

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.pairs[index]


def main() -> None:
    torch.manual_seed(5)
    data = Views()
    sampler = DistributedSampler(data, seed=3)
    loader = DataLoader(data, batch_size=8, sampler=sampler, num_workers=1, persistent_workers=True)
    model = DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for one, other in loader:
            embedded = normalize(model(torch.cat([one, other])), dim=1)
            left, right = embedded.chunk(2)
            loss = cross_entropy(left @ right.T / 0.1, torch.arange(len(left)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main()
    dist.destroy_process_group()
