"""Call the train of script.py on ranks with uneven batches, and compare with one rank that has all samples."""

import copy

import torch
import torch.distributed as dist
from measure import difference, report
from script import train
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

WIDTH, HIDDEN = 8, 16
# For each rank the samples in each of its batches; twice.
CASES = (((4, 4, 4, 4, 3), (4, 1, 4)), ((), (2, 5)))
computed = 0  # samples, in the model that was given


def count(_: nn.Module, inputs: tuple[Tensor, ...], __: object) -> None:
    global computed
    computed += len(inputs[0])


class Computed(TorchDispatchMode):
    """Count the samples that are multiplied by weights of the first layer's shape, in whatever model."""

    samples = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.name().partition(".")[0] in ("aten::addmm", "aten::mm", "aten::bmm", "aten::baddbmm"):
            left, right = args[-2:]
            is_first = (left.shape[-1], right.shape[-1]) == (WIDTH, HIDDEN)
            self.samples += left.numel() // WIDTH if is_first else 0
        return function(*args, **(kwargs or {}))


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, 1))
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
    differs, everywhere = 0.0, Computed()
    for batches in cases:
        mine = [(inputs.clone(), targets.clone()) for inputs, targets in batches[dist.get_rank()]]
        with everywhere:
            train(model, optimizers[0], mine)
        for step in range(max(map(len, batches))):
            found = [of_rank[step] for of_rank in batches if step < len(of_rank)]
            inputs, targets = (torch.cat(each) for each in zip(*found, strict=True))
            optimizers[1].zero_grad()
            nn.functional.mse_loss(theirs(inputs), targets).backward()
            optimizers[1].step()
        differs = max(differs, difference(zip(model.parameters(), theirs.parameters(), strict=True)))
    report(
        end_differs=differs,
        own_samples_left_out=max(0, own - computed),
        samples_besides_own=max(0, computed - own, everywhere.samples - own),
    )


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main()
    dist.destroy_process_group()
