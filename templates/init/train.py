"""Do the ranks find the line behind noisy points, together? A small DistributedDataParallel script to start from.

composesim up --nodes 2 train.py
"""

import gc
import json
import os
import warnings

warnings.filterwarnings("ignore", message="Failed to initialize NumPy")  # torch does without, but says so at import

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main() -> None:
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    train(device)
    gc.collect()  # torch 2.13 on CPU can abort at exit when a DDP model outlives its group; train()'s is gone now
    dist.destroy_process_group()


def train(device: torch.device) -> None:
    torch.manual_seed(0)  # the same on all ranks, so that all see the same points
    points = torch.rand(1024, 1)
    dataset = TensorDataset(points, 3 * points + 1 + 0.01 * torch.randn_like(points))
    sampler = DistributedSampler(dataset)  # each rank its own share
    loader = DataLoader(dataset, batch_size=32, sampler=sampler)
    model = DistributedDataParallel(torch.nn.Linear(1, 1).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

    step = 0
    for epoch in range(5):
        sampler.set_epoch(epoch)  # else every epoch has the same order
        for inputs, targets in loader:
            loss = torch.nn.functional.mse_loss(model(inputs.to(device)), targets.to(device))
            optimizer.zero_grad()
            loss.backward()  # the gradients are averaged over all ranks here
            optimizer.step()
            step += 1
        mean_loss = loss.detach() / dist.get_world_size()
        dist.all_reduce(mean_loss)  # every rank takes part, then one of them prints what is true of all
        if dist.get_rank() == 0:  # one JSON line with a "step": composesim shows it, and puts it into the report
            print(json.dumps({"step": step, "epoch": epoch, "loss": round(mean_loss.item(), 6)}), flush=True)


if __name__ == "__main__":
    main()
