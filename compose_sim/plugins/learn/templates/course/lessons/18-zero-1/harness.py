"""Train with the ShardedAdam of script.py and with torch's Adam, compare the parameters, and measure what the ranks keep and send."""

import copy
import gc

import torch
import torch.distributed as dist
from measure import Traffic, difference, instances, largest_of_all_ranks, refusing, report
from measure_memory import Objects, living
from script import ShardedAdam
from torch import Tensor, nn
from torch.distributed.optim import ZeroRedundancyOptimizer

WIDTH, STEPS = 128, 4


def build() -> nn.Sequential:
    return nn.Sequential(
        *(layer for _ in range(6) for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh())), nn.Linear(WIDTH, 1)
    )


def averaged_gradients(model: nn.Module, generator: torch.Generator) -> list[Tensor]:
    """Return the mean over the ranks of the gradients of samples of this rank."""
    inputs = torch.rand(16, WIDTH, generator=generator)
    loss = nn.functional.mse_loss(model(inputs), inputs.mean(1, keepdim=True))
    found = torch.autograd.grad(loss, [*model.parameters()])
    for each in found:
        dist.all_reduce(each)
        each /= dist.get_world_size()
    return list(found)


def use_once(model: nn.Module) -> None:
    """Let the script, torch and Python import and make what they need only once."""
    model = copy.deepcopy(model)
    for each in model.parameters():
        each.grad = torch.ones_like(each)
    with Traffic():
        ShardedAdam([*model.parameters()], lr=0.01).step()
    torch.optim.Adam(model.parameters(), lr=0.01).step()
    averaged_gradients(model, torch.Generator())
    living()


def main() -> None:
    torch.manual_seed(0)
    model = build()
    at_first = living()
    use_once(model)
    of_class = sum(size for place, size in living().items() if place not in at_first)  # which instances may use
    theirs = copy.deepcopy(model)
    adam = torch.optim.Adam(theirs.parameters(), lr=0.01)
    parameters, traffic = [*model.parameters()], Traffic()
    generator = torch.Generator().manual_seed(dist.get_rank())
    for each in (*parameters, *theirs.parameters()):
        each.grad = torch.zeros_like(each)
    kept = []
    with Objects() as objects:
        before, objects_before = living(), objects.now
        gc.freeze()  # what is there is not looked at again
        own = ShardedAdam(parameters, lr=0.01)
        for step in range(STEPS):
            found = averaged_gradients(theirs, generator)
            for group in (parameters, theirs.parameters()):
                for each, gradient in zip(group, found, strict=True):
                    each.grad.copy_(gradient)
            del found
            if step:  # what was kept from the step before
                state = {each.untyped_storage().data_ptr() for of in adam.state.values() for each in of.values()}
                tensors = sum(size for place, size in living().items() if place not in before and place not in state)
                kept.append(of_class + tensors + objects.now - objects_before)
            with traffic, refusing("files", "threads", "processes"):
                own.step()
            adam.step()
    theirs_state = sum(each.numel() * each.element_size() for of in adam.state.values() for each in of.values())
    sent = sum(elements for _, elements, _ in traffic.collectives) + traffic.message_elements
    report(
        end_differs=difference(zip(parameters, theirs.parameters(), strict=True)),
        part_of_the_state=largest_of_all_ranks(sorted(kept)[1] / theirs_state),
        elements_per_parameter=sent / STEPS / sum(each.numel() for each in parameters),
        optimizers_of_torch=instances(ZeroRedundancyOptimizer),
    )


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main()
    dist.destroy_process_group()
