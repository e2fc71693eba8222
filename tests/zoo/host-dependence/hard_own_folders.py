"""Files in private folders are read only on the node that wrote them; loopback addresses are used only within a node."""

import os
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def main() -> None:
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29500")
    dist.init_process_group("gloo", init_method="env://")
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # used by this rank only
    store.set("own", "value")
    torch.manual_seed(0)
    model = DDP(torch.nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(dist.get_rank())
    with tempfile.TemporaryDirectory() as folder:
        spool = Path(folder) / "samples.pt"
        torch.save(torch.randn(32, 4, generator=generator), spool)
        for batch in torch.load(spool, weights_only=True).split(4):
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
    if dist.get_rank() == 0:
        torch.save(model.state_dict(), "/tmp/composesim-zoo-last.pt")
        torch.load("/tmp/composesim-zoo-last.pt", weights_only=True)
    dist.barrier()
    del model
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
