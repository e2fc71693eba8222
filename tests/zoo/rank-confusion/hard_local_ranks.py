"""LOCAL_RANK used correctly: for the device, a cache per node, and groups within a node that each hold all the data."""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main() -> None:
    local_rank, local_size = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    device = torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    rank = dist.get_rank()
    nodes = [
        dist.new_group(list(range(first, first + local_size))) for first in range(0, dist.get_world_size(), local_size)
    ]
    torch.manual_seed(0)
    features = torch.randn(160, 3)
    data = TensorDataset(features, features.max(1, keepdim=True).values)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    model = torch.nn.Linear(3, 1).to(device)
    model = DDP(model, device_ids=[local_rank] if device.type == "cuda" else None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        seen = torch.zeros(1, device=device)
        for batch, target in loader:
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(batch.to(device)), target.to(device)).backward()
            optimizer.step()
            seen += len(batch)
        dist.all_reduce(seen, group=nodes[rank // local_size])
        if local_rank == 0:
            print(f"node {rank // local_size} has loaded {int(seen)} samples")
    del model
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
