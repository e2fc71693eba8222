"""The trainer destroys the group, and so does the end of the script: after hours of training it ends with an exception."""

# expects: teardown

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


class Trainer:
    def __enter__(self) -> "Trainer":
        dist.init_process_group("gloo")
        torch.manual_seed(0)
        self.model = DDP(torch.nn.Linear(5, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)
        self.generator = torch.Generator().manual_seed(dist.get_rank())
        return self

    def __exit__(self, *_: object) -> None:
        del self.model
        dist.destroy_process_group()

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.optimizer.zero_grad()
            self.model(torch.randn(8, 5, generator=self.generator)).abs().mean().backward()
            self.optimizer.step()


with Trainer() as trainer:
    trainer.run(8)
dist.destroy_process_group()
