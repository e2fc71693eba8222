"""Draw each batch at random, as nanoGPT does, and save the random state of every rank with one file for all."""

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--resume", action="store_true")
arguments = parser.parse_args()
path = Path("out/ckpt.pt")  # in the project

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(1337 + rank)
text = torch.randint(0, 32, (4096,), generator=torch.Generator().manual_seed(1))
model = DistributedDataParallel(nn.Sequential(nn.Embedding(32, 16), nn.Linear(16, 32)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
path.parent.mkdir(exist_ok=True)
step = 0
if arguments.resume:
    state = torch.load(path)
    model.module.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    torch.set_rng_state(state["random"][rank])
    step = state["step"]
while step < 14:
    for group in optimizer.param_groups:
        group["lr"] = 1e-2 * min(1.0, (step + 1) / 8)
    begins = torch.randint(len(text) - 9, (4,))
    inputs = torch.stack([text[begin : begin + 8] for begin in begins])
    targets = torch.stack([text[begin + 1 : begin + 9] for begin in begins])
    loss = nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    if step % 4 == 0:
        states = [torch.empty_like(torch.get_rng_state()) for _ in range(dist.get_world_size())]
        dist.all_gather(states, torch.get_rng_state())
        if rank == 0:
            checkpoint = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save({**checkpoint, "random": states}, path)
dist.destroy_process_group()
