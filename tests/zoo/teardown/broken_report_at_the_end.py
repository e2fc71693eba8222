"""The training is done, but rank 0's final report reads a value that does not exist."""

# expects: teardown
# also: hang, collective-mismatch

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Run:
    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = DistributedDataParallel(nn.Linear(6, 1))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        self.generator = torch.Generator().manual_seed(dist.get_rank())
        self.results: dict[str, float] = {}

    def epoch(self, number: int) -> None:
        total = torch.zeros(())
        for _ in range(4):
            loss = self.model(torch.randn(8, 6, generator=self.generator)).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            total += loss.detach()
        dist.all_reduce(total)
        self.results[f"epoch {number}"] = total.item()

    def report(self) -> None:
        if dist.get_rank() == 0:
            print(f"best of all: {self.results['best']:.3f}")


def main() -> None:
    dist.init_process_group("gloo")
    run = Run()
    for number in range(3):
        run.epoch(number)
    run.report()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
