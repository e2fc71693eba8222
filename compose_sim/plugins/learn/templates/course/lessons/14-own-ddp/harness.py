"""Train with the DataParallel of script.py and with torch's own wrapper, compare them, and count the all-reduces."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
import torch.distributed as dist
from measure import Traffic, difference, instances, refusing, report
from script import DataParallel
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS = 5
traffic = Traffic()
noted = 0  # collectives of the steps before
hidden = 0  # elements whose all-reduce was started while backward was running, and did not stop it


def build() -> nn.Sequential:
    layers = [layer for _ in range(5) for layer in (nn.Linear(48, 48), nn.Tanh())]
    return nn.Sequential(*layers, nn.Linear(48, 1))


@contextmanager
def measured() -> Iterator[None]:
    with traffic, refusing("files", "processes"):
        yield


def note_the_end(_: nn.Module, __: object, ___: object) -> None:
    """The gradients of the first layer come last: when they are ready, backward is over."""
    global hidden
    hidden += sum(elements for _, elements, is_asynchronous in traffic.collectives[noted:] if is_asynchronous)


def main() -> None:
    global noted
    rank = dist.get_rank()
    torch.manual_seed(rank)  # the ranks begin with different parameters: the wrapper has to make them equal
    own_module = build()
    theirs = DistributedDataParallel(copy.deepcopy(own_module))
    own = DataParallel(own_module)
    own_module[0].register_full_backward_hook(note_the_end)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (theirs, own)]
    generator = torch.Generator().manual_seed(100 + rank)
    differs = 0.0
    for _ in range(STEPS):
        inputs = torch.rand(16, 48, generator=generator)
        for model, optimizer in zip((theirs, own), optimizers, strict=True):
            optimizer.zero_grad()
            with measured() if model is own else nullcontext():
                loss = nn.functional.mse_loss(model(inputs), inputs.mean(1, keepdim=True))
                loss.backward()
                if model is own:
                    own.finish()
            optimizer.step()
        noted = len(traffic.collectives)
        pairs = zip(own_module.parameters(), theirs.module.parameters(), strict=True)
        differs = max(differs, difference((mine.grad, wanted.grad) for mine, wanted in pairs))
    flat = torch.cat([parameter.detach().flatten() for parameter in own_module.parameters()])
    others = [torch.empty_like(flat) for _ in range(dist.get_world_size())]
    dist.all_gather(others, flat)
    elements = sum(elements for _, elements, _ in traffic.collectives) + traffic.message_elements
    report(
        largest_difference=differs,
        parameters_differ=sum(int((each != flat).sum()) for each in others),
        collectives_per_step=len(traffic.collectives) / STEPS,
        elements_per_parameter=elements / STEPS / len(flat),
        part_in_backward=hidden / STEPS / len(flat),
        wrappers_of_torch=instances(DistributedDataParallel) - 1,  # without the one to compare with
    )


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main()
    dist.destroy_process_group()
