"""A classifier with reduction="sum". Adam hides the scale of the gradients until weight decay or clipping depend on it."""

# expects: loss-scale
# also: matches-single

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


class Blobs(Dataset):
    """Points around five centers."""

    def __init__(self, count: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.labels = torch.randint(5, (count,), generator=generator)
        centers = 3 * torch.randn(5, 12, generator=generator)
        self.points = centers[self.labels] + torch.randn(count, 12, generator=generator)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"point": self.points[index], "label": self.labels[index]}


def main() -> None:
    torch.manual_seed(1)
    data = Blobs(320)
    sampler = DistributedSampler(data, shuffle=True)
    loader = DataLoader(data, batch_size=8, sampler=sampler, num_workers=0)
    net = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(12, 32), nn.GELU(), nn.Linear(32, 5)))
    criterion = nn.CrossEntropyLoss(reduction="sum")
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2, weight_decay=0.01)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for batch in loader:
            optimizer.zero_grad(set_to_none=True)
            criterion(net(batch["point"]), batch["label"]).backward()
            optimizer.step()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main()
    dist.destroy_process_group()
