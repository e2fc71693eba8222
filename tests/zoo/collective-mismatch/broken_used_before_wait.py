"""The sum of losses is reduced in the background, and divided before that is done."""
# expects: collective-mismatch

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    features = torch.randn(96, 5)
    data = TensorDataset(features, features.sum(1, keepdim=True))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    model = DistributedDataParallel(torch.nn.Linear(5, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        total = torch.zeros(1)
        for batch, target in loader:
            loss = (model(batch) - target).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
        work = dist.all_reduce(total, async_op=True)
        mean = total / (world * len(loader))
        work.wait()
        if rank == 0:
            print(f"epoch {epoch} loss {mean.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
