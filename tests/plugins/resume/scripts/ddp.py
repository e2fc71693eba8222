"""Train with DDP, save in the middle of an epoch, and resume all that training depends on."""

import os
import random
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

EPOCHS, EVERY = 3, 5
SHARED = Path(os.environ["COMPOSESIM_SHARED"])
PATH = SHARED / "last.pt"


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    random.seed(rank)
    generator = torch.Generator().manual_seed(7)
    data = TensorDataset(torch.randn(64, 8, generator=generator), torch.randn(64, 1, generator=generator))
    sampler = DistributedSampler(data, seed=3)
    loader = DataLoader(data, batch_size=4, sampler=sampler)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 10) * 0.97**step)
    average = {name: value.detach().clone() for name, value in model.module.named_parameters()}
    step = 0
    if PATH.exists():
        state = torch.load(PATH, weights_only=False)
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        scheduler.load_state_dict(state["scheduler"])
        average = state["average"]
        step = state["step"]
        own = torch.load(SHARED / f"random-{rank}.pt", weights_only=False)
        torch.set_rng_state(own["torch"])
        random.setstate(own["python"])
    first = step % len(loader)
    for epoch in range(step // len(loader), EPOCHS):
        sampler.set_epoch(epoch)
        before = torch.get_rng_state()
        batches = iter(loader)
        torch.set_rng_state(before)  # a new iterator draws a seed for its workers
        for number, (inputs, targets) in enumerate(batches):
            if number < first:
                continue
            inputs = inputs + 0.01 * random.random()
            optimizer.zero_grad()
            nn.functional.mse_loss(model(inputs), targets).backward()
            optimizer.step()
            scheduler.step()
            step += 1
            for name, value in model.module.named_parameters():
                average[name].lerp_(value.detach(), 0.1)
            if step % EVERY == 0:
                save(model, optimizer, scheduler, average, step, rank)
        first = 0
    dist.destroy_process_group()


def save(model, optimizer, scheduler, average, step, rank):
    own = {"torch": torch.get_rng_state(), "python": random.getstate()}
    torch.save(own, SHARED / f"random-{rank}.pt")
    dist.barrier()
    if rank == 0:
        state = {
            "model": model.module.state_dict(),
            "optimizer": optimizer.state_dict(),
            "scheduler": scheduler.state_dict(),
            "average": average,
            "step": step,
        }
        torch.save(state, PATH.with_suffix(".new"))
        PATH.with_suffix(".new").replace(PATH)


if __name__ == "__main__":
    main()
