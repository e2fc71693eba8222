"""Many writers and early readers, all synchronized: separate names, turns, appends, a file per node in /tmp, a polled file."""

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def wait_for(path: Path) -> None:
    while not path.exists():
        time.sleep(0.01)


def main() -> None:
    shared = Path("out")
    shared.mkdir(exist_ok=True)
    prepared = shared / "vocabulary.txt"
    if os.environ["RANK"] == "0":  # before the process group exists: others wait for the file, which appears complete
        prepared.with_suffix(".part").write_text("a b c d e")
        prepared.with_suffix(".part").rename(prepared)
    wait_for(prepared)
    words = prepared.read_text().split()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DDP(torch.nn.Linear(len(words), 2))
    optimizer = torch.optim.Adam(model.parameters())
    generator = torch.Generator().manual_seed(rank)
    for _ in range(6):
        optimizer.zero_grad()
        model(torch.randn(4, len(words), generator=generator)).logsumexp(1).mean().backward()
        optimizer.step()
    torch.save(torch.get_rng_state(), shared / f"random-{rank}.pt")
    with (shared / "log.txt").open("a") as log:
        log.write(f"rank {rank} is done\n")
    for turn in range(world):
        if turn == rank:
            (shared / "token.txt").write_text(str(rank))
        dist.barrier()
    if os.environ["LOCAL_RANK"] == "0":
        Path(f"/tmp/composesim-zoo-{os.environ['TORCHELASTIC_RUN_ID']}.txt").write_text("this node's own cache")
    if rank == 0:
        torch.save(model.state_dict(), shared / "model.pt")
    dist.barrier()
    torch.load(shared / "model.pt", weights_only=True)
    del model
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
