"""Call the clip of script.py with shards of different sizes, and compare with the whole gradient clipped on one rank."""

import math

import torch
import torch.distributed as dist
from measure import Traffic, difference, report
from script import clip
from torch import Tensor

SHAPES = ((40, 8), (16,), (3, 5, 7), (1,), (64, 2))
# Of each case: for each gradient the rank that has it, or -1 if all ranks have it; its scale; and the largest norm.
CASES = (
    ((0, 1, 1, 0, -1), (1.0, 1.0, 3.0, 2.0, 1.0), 1.0),
    ((0, 0, -1, 0, 0), (1.0, 5.0, 2.0, 0.1, 1.0), 2.5),  # rank 1 has no shard
    ((1, 0, 1, -1, -1), (0.01, 0.01, 0.01, 0.01, 0.01), 1.0),  # small enough
    ((0, 1, 1, 0, -1), (1.0, 1.0, math.inf, 1.0, 1.0), 1.0),  # a shard overflows
    ((0, 1, 0, 1, -1), (1.0, 1.0, 1.0, 1.0, math.nan), 1.0),  # a replica is no number
)


def part(gradients: list[Tensor], owners: tuple[int, ...], owner: int) -> list[Tensor]:
    return [gradient for gradient, found in zip(gradients, owners, strict=True) if found == owner]


def main() -> None:
    rank, norms, pairs, hidden = dist.get_rank(), [], [], 0
    generator = torch.Generator()
    collectives, elements = [], []
    for number, (owners, scales, max_norm) in enumerate(CASES):
        generator.manual_seed(number)
        whole = [scale * torch.randn(shape, generator=generator) for shape, scale in zip(SHAPES, scales, strict=True)]
        norm = torch.cat([each.flatten() for each in whole]).norm()
        wanted = [each * min(1.0, max_norm / norm.item()) for each in whole]
        sharded, replicated = ([each.clone() for each in part(whole, owners, owner)] for owner in (rank, -1))
        with Traffic() as traffic:
            found = torch.as_tensor(clip(sharded, replicated, max_norm)).reshape(())
        collectives.append(len(traffic.collectives))
        elements.append(traffic.message_elements + sum(elements for _, elements, _ in traffic.collectives))
        if not norm.isfinite():
            hidden += bool(found.isfinite())
            continue
        norms.append((found, norm))
        for mine, owner in ((sharded, rank), (replicated, -1)):
            pairs += zip(mine, part(wanted, owners, owner), strict=True)
    report(
        norm_differs=difference(norms),
        gradients_differ=difference(pairs),
        norms_that_hide_infinity=hidden,
        collectives_per_call=collectives,
        elements_per_call=elements,
    )


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main()
    dist.destroy_process_group()
