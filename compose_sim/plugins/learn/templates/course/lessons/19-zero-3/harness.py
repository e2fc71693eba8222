"""Compute a network with the apply of script.py, compare its gradients, and measure what is whole at once and what travels."""

from contextlib import ExitStack

import torch
import torch.distributed as dist
from measure import Traffic, difference, refusing, report
from measure_memory import Objects, Storages
from script import apply
from torch import Tensor, nn

LAYERS, WIDTH, SAMPLES, STEPS = 12, 256, 8, 3
ELEMENTS = WIDTH * WIDTH + WIDTH  # of a layer


def compute(whole: Tensor, inputs: Tensor) -> Tensor:
    weight, bias = whole.split([WIDTH * WIDTH, WIDTH])
    return torch.tanh(nn.functional.linear(inputs, weight.view(WIDTH, WIDTH), bias))


def wanted_gradients(layers: list[Tensor], inputs: Tensor) -> list[Tensor]:
    """Return the mean over the ranks of the gradients of whole layers."""
    whole = [each.clone().requires_grad_() for each in layers]
    for each in whole:
        inputs = compute(each, inputs)
    found = torch.autograd.grad((inputs**2).sum(), whole)
    for each in found:
        dist.all_reduce(each)
        each /= dist.get_world_size()
    return list(found)


def main() -> None:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    generator = torch.Generator().manual_seed(0)
    layers = [torch.randn(ELEMENTS, generator=generator) / 12 for _ in range(LAYERS)]
    shards = [each.chunk(world_size)[rank].clone().requires_grad_() for each in layers]
    differs, most, traffic, objects = 0.0, 0, Traffic(), Objects()
    own = torch.Generator().manual_seed(rank + 1)  # samples of this rank
    for step in range(STEPS):  # the first one imports what is imported late, and is not measured
        samples = torch.randn(SAMPLES, WIDTH, generator=own)
        wanted = wanted_gradients(layers, samples)
        storages = Storages([*shards, samples])
        measures = [traffic, objects] if step else []
        with ExitStack() as stack:
            for each in (*measures, storages, refusing("files", "threads", "processes")):
                stack.enter_context(each)
            outputs = samples
            for shard in shards:
                outputs = apply(compute, shard, outputs)
            (outputs**2).sum().backward()
        most = storages.most if step == STEPS - 1 else most
        del outputs
        parts = [each.chunk(world_size)[rank] for each in wanted]
        differs = max(differs, difference(zip((each.grad for each in shards), parts, strict=True)))
        del wanted, parts
        for shard in shards:
            shard.grad = None
        with torch.no_grad():  # as an optimizer would
            for shard, layer in zip(shards, layers, strict=True):
                layer *= 0.9 + 0.1 * step
                shard.copy_(layer.chunk(world_size)[rank])
    elements = traffic.elements() / (STEPS - 1) / (LAYERS * ELEMENTS)
    report(
        gradients_differ=differs,
        whole_elements=most,
        elements_per_parameter=elements,
        bytes_of_objects=objects.most,
    )


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main()
    dist.destroy_process_group()
