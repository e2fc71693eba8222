"""Read a stream of samples, of which each rank and each of its workers takes a part, and skip what was used before."""

import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

SHARED = Path(os.environ["COMPOSESIM_SHARED"])
BATCH, WORKERS = 4, 2


class Stream(IterableDataset):
    def __init__(self, part, parts, used):
        self.part, self.parts, self.used = part, parts, used  # batches used

    def __iter__(self):
        begin = self.used + get_worker_info().id  # batches come from the workers in turn
        for batch in range(begin, 30, WORKERS):
            for number in range(batch * BATCH, (batch + 1) * BATCH):
                yield torch.randn(8, generator=torch.Generator().manual_seed(number * self.parts + self.part))


def main():
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    step, stream = 0, {"part": rank, "parts": world_size, "used": 0}
    if (SHARED / "state.pt").exists():
        state = torch.load(SHARED / "state.pt")
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        stream = torch.load(SHARED / f"stream-{rank}.pt")
        step = state["step"]
    for inputs in DataLoader(Stream(**stream), batch_size=BATCH, num_workers=WORKERS):
        (model(inputs) - inputs.sum(dim=1, keepdim=True)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        stream["used"] += 1
        if step % 5 == 0:
            torch.save(stream, SHARED / f"stream-{rank}.pt")
            dist.barrier()
            if rank == 0:
                state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
                torch.save(state, SHARED / "state.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
