"""The training is done and the weights are saved, but an exit handler crashes: the job fails and is run again."""

# expects: teardown

import atexit
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def say_goodbye() -> None:
    if os.environ["RANK"] == "1":
        os.abort()  # like a native library that is shut down in the wrong order


def main() -> None:
    atexit.register(say_goodbye)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DDP(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(6):
        optimizer.zero_grad()
        model(torch.randn(8, 4, generator=generator)).square().mean().backward()
        optimizer.step()
    del model
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
