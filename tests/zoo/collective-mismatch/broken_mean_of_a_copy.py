"""Workers train by themselves for four steps and then average what has changed, but all_reduce is given a quotient that has no name."""

# expects: collective-mismatch
# also: params-in-sync

import copy

import torch
import torch.distributed as dist
from torch import nn

LOCAL_STEPS, ROUNDS = 4, 5


class LocalTraining:
    """Steps of an inner optimizer, and now and then one of an outer optimizer, along the mean change of all workers."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.shared = model, copy.deepcopy(model)
        self.inner = torch.optim.AdamW(model.parameters(), lr=0.01)
        self.outer = torch.optim.SGD(self.shared.parameters(), lr=0.7, momentum=0.9, nesterov=True)

    def round(self, batches) -> float:
        for features, labels in batches:
            loss = nn.functional.cross_entropy(self.model(features), labels)
            self.inner.zero_grad()
            loss.backward()
            self.inner.step()
        self.average()
        return loss.item()

    @torch.no_grad()
    def average(self) -> None:
        for shared, own in zip(self.shared.parameters(), self.model.parameters()):
            change = shared - own
            dist.all_reduce(change / dist.get_world_size())
            shared.grad = change
        self.outer.step()
        for shared, own in zip(self.shared.parameters(), self.model.parameters()):
            own.copy_(shared)


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(7)
    training = LocalTraining(nn.Sequential(nn.Linear(10, 24), nn.ReLU(), nn.Linear(24, 3)))
    generator = torch.Generator().manual_seed(dist.get_rank())
    for number in range(ROUNDS):
        features = torch.randn(LOCAL_STEPS, 16, 10, generator=generator)
        loss = training.round([(each, each[:, :3].argmax(1)) for each in features])
        print(f"worker {dist.get_rank()}, round {number}: {loss:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
