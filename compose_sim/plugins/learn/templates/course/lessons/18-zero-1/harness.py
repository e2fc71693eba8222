"""Train with the ShardedAdam of script.py and with torch's Adam, compare the parameters, and measure what the ranks keep and send."""

import copy

import torch
import torch.distributed as dist
from measure import Traffic, difference, report
from measure_memory import living
from script import ShardedAdam
from torch import Tensor, nn

STEPS = 4


def build() -> nn.Sequential:
    return nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(32, 32), nn.Tanh())), nn.Linear(32, 1))


def averaged_gradients(model: nn.Module, generator: torch.Generator) -> list[Tensor]:
    """Return the mean over the ranks of the gradients of samples of this rank."""
    inputs = torch.rand(16, 32, generator=generator)
    loss = nn.functional.mse_loss(model(inputs), inputs.mean(1, keepdim=True))
    found = torch.autograd.grad(loss, [*model.parameters()])
    for each in found:
        dist.all_reduce(each)
        each /= dist.get_world_size()
    return list(found)


def main() -> None:
    torch.manual_seed(0)
    model = build()
    theirs = copy.deepcopy(model)
    adam = torch.optim.Adam(theirs.parameters(), lr=0.01)
    parameters, traffic = [*model.parameters()], Traffic()
    generator = torch.Generator().manual_seed(dist.get_rank())
    for each in (*parameters, *theirs.parameters()):
        each.grad = torch.zeros_like(each)
    adam.step()  # makes its state
    adam = torch.optim.Adam(theirs.parameters(), lr=0.01)
    before = living()
    own = ShardedAdam(parameters, lr=0.01)
    theirs_state = 0
    for step in range(STEPS):
        found = averaged_gradients(theirs, generator)
        for group in (parameters, theirs.parameters()):
            for each, gradient in zip(group, found, strict=True):
                each.grad.copy_(gradient)
        del found
        with traffic:
            own.step()
        if step == 0:
            kept = sum(size for place, size in living().items() if place not in before)
        adam.step()
        if step == 0:
            theirs_state = sum(each.numel() * each.element_size() for of in adam.state.values() for each in of.values())
    sent = sum(elements for _, elements, _ in traffic.collectives) / STEPS
    report(
        end_differs=difference(zip(parameters, theirs.parameters(), strict=True)),
        part_of_the_state=kept / theirs_state,
        elements_per_parameter=sent / sum(each.numel() for each in parameters),
    )


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main()
    dist.destroy_process_group()
