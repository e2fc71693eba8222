"""Call the train_step of script.py, and measure what a rank holds: parameters, gradients, Adam's state and activations."""

import copy
from contextlib import nullcontext
from types import ModuleType

import torch
import torch.distributed as dist
from measure import difference, refusing, report
from measure_memory import Objects, Storages
from torch import Tensor, nn
from torch.optim import Optimizer

with refusing("threads", "processes"):
    import script

SAMPLES, STEPS = 1024, 3


def build() -> nn.Sequential:
    blocks = [layer for _ in range(3) for layer in (nn.Linear(64, 64), nn.Tanh())]
    return nn.Sequential(*blocks, nn.Linear(64, 1))


def bytes_of(tensors) -> int:
    return sum(each.numel() * each.element_size() for each in tensors)


def bytes_of_arrays(module: ModuleType) -> int:
    """Return the bytes of arrays that a module holds."""
    sizes = [getattr(each, "nbytes", 0) for each in vars(module).values() if not isinstance(each, type)]
    return sum(size for size in sizes if isinstance(size, int))


class Gradients:
    """What an optimizer has used when it has stepped: how far from the gradients of all samples at once, and what is held."""

    def __init__(self, model: nn.Module, optimizer: Optimizer) -> None:
        self.differ, self.bytes_held = 0.0, 0
        self.wanted: list[Tensor] = []
        self._model, self._optimizer = model, optimizer
        optimizer.register_step_post_hook(self._note)  # a closure computes gradients during the step

    def _note(self, *_: object) -> None:
        parameters = [*self._model.parameters()]
        found = [each.grad for each in parameters]
        self.differ = max(self.differ, difference(zip(found, self.wanted, strict=True)))
        state = [each for of_one in self._optimizer.state.values() for each in of_one.values() if each.dim()]
        self.bytes_held = bytes_of([*parameters, *(each for each in found if each is not None), *state])


def main() -> None:
    torch.manual_seed(0)
    model = build()
    theirs = copy.deepcopy(model)
    optimizers = [torch.optim.Adam(each.parameters(), lr=0.01) for each in (model, theirs)]
    gradients, objects = Gradients(model, optimizers[0]), Objects()
    generator = torch.Generator().manual_seed(dist.get_rank())
    differs, most = 0.0, 0
    for step in range(STEPS):
        inputs = torch.rand(SAMPLES, 64, generator=generator)
        targets = inputs.mean(1, keepdim=True)
        theirs.load_state_dict(model.state_dict())
        optimizers[1].zero_grad()
        nn.functional.mse_loss(theirs(inputs), targets).backward()
        gradients.wanted = [each.grad.clone() for each in theirs.parameters()]
        state = [each for of_one in optimizers[0].state.values() for each in of_one.values()]
        storages = Storages([*model.parameters(), *state, inputs, targets])
        with objects if step else nullcontext(), storages, refusing("files", "threads", "processes"):
            script.train_step(model, optimizers[0], inputs, targets)
        optimizers[1].step()
        differs = max(differs, difference(zip(model.parameters(), theirs.parameters(), strict=True)))
        most = max(most, storages.most_bytes) if step else 0  # the first step makes the state, and imports modules
    report(
        gradients_differ=gradients.differ,
        end_differs=differs,
        bytes_without_activations=gradients.bytes_held,
        bytes_of_activations=most,
        bytes_of_objects=objects.most + bytes_of_arrays(script),
    )


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main()
    dist.destroy_process_group()
