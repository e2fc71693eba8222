"""Even and odd ranks reduce two metrics in a different order: a maximum is paired with a sum, and nothing fails."""

# expects: collective-mismatch

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def reduced(metrics: dict[str, torch.Tensor]) -> dict[str, float]:
    for name, value in metrics.items():
        dist.all_reduce(value, op=dist.ReduceOp.MAX if name == "peak" else dist.ReduceOp.SUM)
    return {name: value.item() for name, value in metrics.items()}


def train() -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    generator = torch.Generator().manual_seed(5)
    images = torch.rand(192, 3, 8, 8, generator=generator)
    data = TensorDataset(images, images.mean((1, 2, 3)))
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 1))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    sampler = DistributedSampler(data)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for batch, target in DataLoader(data, batch_size=8, sampler=sampler):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                output = model(batch).squeeze(1)
            loss = (output.float() - target).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            mean = loss.detach() / world
            metrics = {"loss": mean} if rank % 2 else {"peak": output.detach().float().max()}
            metrics.setdefault("loss", mean)
            metrics.setdefault("peak", output.detach().float().max())
            told = reduced(metrics)
        if rank == 0:
            print(f"epoch {epoch}: {told}")


if __name__ == "__main__":
    torch.manual_seed(1)
    dist.init_process_group(backend="gloo")
    try:
        train()
    finally:
        dist.destroy_process_group()
