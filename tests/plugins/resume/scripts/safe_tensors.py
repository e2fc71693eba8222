"""Keep the model in a file of safetensors, and the rest beside it."""

import os
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn.parallel import DistributedDataParallel

SHARED = Path(os.environ["COMPOSESIM_SHARED"])


def main():
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    data = torch.randn(1024, 8)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    step = 0
    if (SHARED / "latest").exists():
        folder = SHARED / (SHARED / "latest").read_text()
        model.module.load_state_dict(load_file(folder / "model.safetensors"))
        rest = torch.load(folder / "training.pt")
        optimizer.load_state_dict(rest["optimizer"])
        step = rest["step"]
    while step < 16:
        begin = (step * world_size + rank) * 8
        inputs = data[begin : begin + 8]
        (model(inputs) - inputs.sum(dim=1, keepdim=True)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if step % 4 == 0 and rank == 0:
            folder = SHARED / f"step-{step}"
            folder.mkdir(exist_ok=True)
            save_file(model.module.state_dict(), folder / "model.safetensors")
            torch.save({"optimizer": optimizer.state_dict(), "step": step}, folder / "training.pt")
            (SHARED / "latest").write_text(folder.name)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
