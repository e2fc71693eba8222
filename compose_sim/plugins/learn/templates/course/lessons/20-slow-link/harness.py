"""Call the predict of script.py on three links that exist on paper, and compare with the time that they take."""

import random
from collections.abc import Callable
from itertools import chain, count

import torch
import torch.distributed as dist
from measure import Traffic, report
from script import predict

# About the seconds for each message and for each byte, and what is to be predicted: elements and buckets.
LINKS = ((0.04, 1e-7, 2_000_000, 50), (0.0005, 4e-8, 4_000_000, 8), (0.003, 1e-6, 1_000_000, 200))


class Link(Traffic):
    """Let a clock advance with each all-reduce: the first one opens connections, and some of them are disturbed."""

    def __init__(self, alpha: float, beta: float, *, first: int) -> None:
        super().__init__()
        self.bytes = 0
        now, chance = 0.0, random.Random(first)  # the same on both ranks: a script may act on what it measures
        # One of every five, so that a median of five or more is undisturbed; of the first five, the one with this number.
        later = (number == 0 for _ in count() for number in chance.sample(range(5), 5))
        disturbed = chain((number == first for number in range(5)), later)

        def advance(size: int) -> None:
            nonlocal now
            now += alpha + beta * size + (20 * alpha if len(self.collectives) == 1 else 0)
            now += (0.5 + chance.random()) * (alpha + beta * size) if next(disturbed) else 0
            self.bytes += size

        self.clock: Callable[[], float] = lambda: now
        self._advance = advance

    def _note(self, name: str, given: dict, args: tuple) -> tuple:
        args = super()._note(name, given, args)
        if name.startswith("allreduce"):
            self._advance(sum(each.numel() * each.element_size() for each in args[0]))
        return args


def main() -> None:
    errors, shares, tried = [], [], []
    factors = torch.rand(2) + 0.5  # no two runs have the same links
    dist.broadcast(factors, src=0)
    for (alpha, beta, elements, buckets), first in zip(LINKS, (1, 3, 4), strict=True):
        alpha, beta = alpha * float(factors[0]), beta * float(factors[1])
        link = Link(alpha, beta, first=first)
        with link:
            predicted = float(predict(link.clock, elements, buckets))
        taken = buckets * alpha + 4 * elements * beta
        error = 100 * abs(predicted / taken - 1)
        errors.append(error if error < 1e9 else 1e9)  # also if it is no number
        shares.append(100 * link.bytes / (4 * elements))
        tried.append(len(link.collectives))
    report(error_in_percent=round(max(errors), 6), percent_of_the_bytes_sent=max(shares))
    for each in tried:
        report(collectives=each)


if __name__ == "__main__":
    torch.seed()
    dist.init_process_group("gloo")
    main()
    dist.destroy_process_group()
