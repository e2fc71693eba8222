"""Counts of an evaluation are reduced in place after each batch, so what all ranks counted before is added again."""

# expects: collective-mismatch

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Accuracy:
    """Hits and samples of each class."""

    def __init__(self, classes):
        self.counts = torch.zeros(2, classes, dtype=torch.long)

    def add(self, predicted, labels):
        self.counts[0] += torch.bincount(labels[predicted == labels], minlength=self.counts.shape[1])
        self.counts[1] += torch.bincount(labels, minlength=self.counts.shape[1])

    def over_ranks(self):
        counts = self.counts
        dist.all_reduce(counts)
        hits, samples = counts.sum(1).tolist()
        return hits / samples


def batch(generator):
    inputs = torch.randn(32, 6, generator=generator)
    return inputs, inputs[:, :3].argmax(1)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(6)
    model = DistributedDataParallel(nn.Linear(6, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    generator = torch.Generator().manual_seed(30 + dist.get_rank())
    for epoch in range(3):
        for _ in range(8):
            inputs, labels = batch(generator)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
        accuracy = Accuracy(3)
        with torch.no_grad():
            for _ in range(5):
                inputs, labels = batch(generator)
                accuracy.add(model(inputs).argmax(1), labels)
                running = accuracy.over_ranks()
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: {running:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
