"""Each rank stops early by its own loss. Rank 1 leaves the loop first and waits at the barrier; the others wait in backward."""

# expects: hang
# also: collective-mismatch, uneven-inputs
# options: --hang-timeout 4s

import torch
import torch.distributed as dist
from torch import nn


class Trainer:
    def __init__(self) -> None:
        self.rank = dist.get_rank()
        self.model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2)))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.generator = torch.Generator().manual_seed(self.rank)

    def step(self) -> float:
        inputs = torch.randn(8, 4, generator=self.generator)
        loss = nn.functional.cross_entropy(self.model(inputs), (inputs[:, 0] > 0).long())
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def is_good_enough(self, step: int) -> bool:
        return step == 5 and self.rank == 1  # stands for this rank's loss falling below a limit

    def fit(self, steps: int) -> None:
        for step in range(steps):
            self.step()
            if self.is_good_enough(step):
                break


dist.init_process_group("gloo")
trainer = Trainer()
trainer.fit(12)
dist.barrier()
dist.destroy_process_group()
