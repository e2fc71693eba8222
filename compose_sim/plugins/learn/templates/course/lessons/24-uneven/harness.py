"""Call the train of script.py on ranks with uneven batches, and compare with one rank that has all samples."""

import copy

import torch
import torch.distributed as dist
from measure import difference, report
from script import train
from torch import Tensor, nn

WIDTH = 8
# For each rank the samples in each of its batches; twice.
CASES = (((4, 4, 4, 4, 3), (4, 1, 4)), ((), (2, 5)))
computed = 0  # samples


def count(_: nn.Module, inputs: tuple[Tensor, ...], __: object) -> None:
    global computed
    computed += len(inputs[0])


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, 16), nn.Tanh(), nn.Linear(16, 1))
    theirs = copy.deepcopy(model)
    model[0].register_forward_hook(count)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1, momentum=0.9) for each in (model, theirs)]
    cases = [
        [
            [(torch.randn(size, WIDTH), torch.randn(size, 1) + 3 * rank) for size in of_rank]
            for rank, of_rank in enumerate(case)
        ]
        for case in CASES
    ]
    own = sum(sum(case[dist.get_rank()]) for case in CASES)
    differs = 0.0
    for batches in cases:
        train(model, optimizers[0], [(inputs.clone(), targets.clone()) for inputs, targets in batches[dist.get_rank()]])
        for step in range(max(map(len, batches))):
            found = [of_rank[step] for of_rank in batches if step < len(of_rank)]
            inputs, targets = (torch.cat(each) for each in zip(*found, strict=True))
            optimizers[1].zero_grad()
            nn.functional.mse_loss(theirs(inputs), targets).backward()
            optimizers[1].step()
        differs = max(differs, difference(zip(model.parameters(), theirs.parameters(), strict=True)))
    report(end_differs=differs, samples_besides_own=computed - own)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main()
    dist.destroy_process_group()
