"""Only rank 0 writes the checkpoint and then calls barrier: the other ranks are one collective ahead."""

# expects: hang
# also: collective-mismatch
# options: --hang-timeout 4s

import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def save(model: torch.nn.Module, path: Path) -> None:
    if dist.get_rank() == 0:
        torch.save(model.state_dict(), path)
        dist.barrier()


def main() -> None:
    dist.init_process_group("gloo")
    folder = Path(os.environ.get("COMPOSESIM_SHARED", "."))
    generator = torch.Generator().manual_seed(7 + dist.get_rank())
    model = DistributedDataParallel(torch.nn.Linear(4, 4))
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(6):
        loss = model(torch.randn(4, 4, generator=generator)).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == 3:
            save(model.module, folder / "model.pt")
    dist.destroy_process_group()


main()
