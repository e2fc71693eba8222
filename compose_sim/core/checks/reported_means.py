"""Find numbers that ranks reduce after they evaluated a model, and that are not means over all samples as reported."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import exp, sqrt

from compose_sim.core.checks.tolerances import WHOLE_NUMBER
from compose_sim.core.events.observations import Observed, RankObserved
from compose_sim.node.records.data import EpochProgress
from compose_sim.node.records.models import OptimizerStep
from compose_sim.node.records.process_groups import Collective
from compose_sim.node.records.record import Place

NUMBER = re.compile(r"(?<![\w.])[-+]?\d+\.\d+(?:[eE][-+]?\d+)?(?![\w.]*\.\d)")
EVALUATION = re.compile(
    r"val|test|eval|\bdev\b|acc|(?<![a-z\d])(?:f1|auc)(?![a-z])|perplexity|ppl|precision|recall|top-?\d|bleu|score",
    re.IGNORECASE,
)
# An AUC or a correlation of some samples, directly before its number: unlike accuracy or recall@k, it is no mean over them. Nor is a
# macro F1, but that of answers to questions is.
_UNLIKE_A_MEAN = re.compile(
    r"(?<![a-z\d])((macro|micro|weighted)[-_ ]f1|auc|auroc|kappa|mcc|r2)( score)?\W{1,3}$", re.IGNORECASE
)
_IS_MEAN = re.compile(r"mean|avg|average|\bper\b|\bover\b|user|fold", re.IGNORECASE)
_APART = 0.002  # relative
MIN_EVALUATIONS = 2
MIN_DIGITS, _MIN_DIGITS_OF_ONE = 3, 4  # of printed numbers, and of a single one: fewer may be alike by chance
_PRINTED_AS: tuple[Callable[[float], float], ...] = (
    lambda mean: mean,
    lambda mean: 100 * mean,
    lambda mean: exp(min(mean, 100)),
    lambda mean: sqrt(abs(mean)),
)
_Number = tuple[tuple[Collective, ...], int]  # what all ranks exchanged, and a place in these tensors
REDUCING_OPS = ("all_reduce", "reduce", "all_gather", "all_gather_into_tensor")


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanOfMeans:
    """Each rank's own mean, the number of its samples, and where they were reduced."""

    means: Mapping[int, float]
    samples: Mapping[int, int]
    at: Place | None
    are_shares: bool

    @property
    def mean(self) -> float:
        """The mean of the means."""
        return sum(self.means.values()) / len(self.means)

    @property
    def weighted(self) -> float:
        """The mean over all samples."""
        return sum(self.means[rank] * count for rank, count in self.samples.items()) / sum(self.samples.values())


def means_of_means(observed: Observed, logs: Mapping[int, Sequence[str]]) -> Iterator[MeanOfMeans]:
    """
    Yield the reductions of means of unequally many samples.

    A number is a mean if the ranks reduce it by one, if it is from 0 to 1 and a whole number of the rank's own samples on each of them,
    or if after every evaluation a rank prints the sum divided by the number of ranks.

    An evaluation is left out if ranks then exchange anything but a few such numbers before the next step. One that is whole on
    all ranks may be the count by which they weigh the others.
    """
    # By place in the script, and of the number in the tensor
    maybe: dict[tuple[Place | None, int], list[MeanOfMeans]] = {}
    for places, samples in _exchanged_together(observed):
        has_counts = any(all(is_whole(each.values[place]) for each in number) for number, place in places)
        if has_counts or len(set(samples.values())) == 1:
            continue
        for number, place in places:
            found = _mean_of_means(number, place, samples)
            is_averaged = number[0].reduce == "AVG" and len(number[0].values) == 1  # several may be a small tensor
            if found and (found.are_shares or is_averaged):
                yield found
            elif found:
                maybe.setdefault((found.at, place), []).append(found)
    printed = reported_numbers(logs)
    for of_place in maybe.values():
        digits = MIN_DIGITS if len(of_place) >= MIN_EVALUATIONS else _MIN_DIGITS_OF_ONE
        if all(any(is_printed(each.mean, each.weighted, text, digits) for text in printed) for each in of_place):
            yield of_place[0]


def _exchanged_together(observed: Observed) -> Iterator[tuple[list[_Number], dict[int, int]]]:
    """Yield what all ranks exchanged after an evaluation, with each place in a tensor, and how many samples each rank evaluated."""
    for together in zip(*map(reduced_after_evaluation, observed), strict=False):
        numbers = list(zip(*(exchanged for exchanged, _ in together), strict=False))
        if all(len(exchanged) == len(numbers) for exchanged, _ in together):
            places = [(each, place) for each in numbers for place in range(min(len(one.values) for one in each))]
            yield places, {exchanged[0].rank: count for exchanged, count in together}


def _mean_of_means(reduced: Sequence[Collective], place: int, samples: Mapping[int, int]) -> MeanOfMeans | None:
    means = {each.rank: each.values[place] for each in reduced}
    hits = [means[rank] * samples[rank] for rank in means]
    are_shares = all(0 <= each <= 1 for each in means.values()) and all(map(is_whole, hits))
    is_one = len({each.at for each in reduced}) == 1 and set(means) == set(reduced[0].group)
    return MeanOfMeans(means=means, samples=samples, at=reduced[0].at, are_shares=are_shares) if is_one else None


def means_of_ranks(observed: Observed, logs: Mapping[int, Sequence[str]]) -> Iterator[MeanOfMeans]:
    """
    Yield the means of ranks' own numbers that are reported, under a name of which no mean over parts of the samples is the whole.

    The numbers of some evaluations must be clearly apart, and each of their means must be printed behind the name.
    """
    printed = [text for lines in logs.values() for line in lines for text in _named(line)]
    of_line: dict[tuple[Place | None, int], list[MeanOfMeans]] = {}
    for places, samples in _exchanged_together(observed):
        for number, place in places:
            if found := _mean_of_means(number, place, samples):
                of_line.setdefault((found.at, place), []).append(found)
    for means in of_line.values():
        widest = max(means, key=lambda each: max(each.means.values()) - min(each.means.values()))
        is_apart = max(widest.means.values()) - min(widest.means.values()) > _APART * abs(widest.mean)
        is_reported = all(
            any(_shows(text, times * each.mean, MIN_DIGITS) for text in printed for times in (1, 100)) for each in means
        )
        if len(means) >= MIN_EVALUATIONS and is_apart and is_reported:
            yield widest


def _named(line: str) -> Iterator[str]:
    """Yield the numbers of a line that stand behind such a name, unless it calls them means."""
    end = 0
    for each in NUMBER.finditer(line) if not _IS_MEAN.search(line) else ():
        if _UNLIKE_A_MEAN.search(line[end : each.start()]):
            yield each.group()
        end = each.end()


def reported_numbers(logs: Mapping[int, Sequence[str]], name: re.Pattern[str] = EVALUATION) -> list[str]:
    """Return the numbers in lines that report an evaluation, or a metric with such a name."""
    found = (line for lines in logs.values() for line in lines if name.search(line))
    return [text for line in found for text in NUMBER.findall(line)]


def is_printed(of_means: float, right: float, text: str, digits: int) -> bool:
    """Return whether this is the mean of means, or a percentage, perplexity or root of it, in so many digits, and not right."""
    return any(
        _shows(text, change(of_means), digits) and not _shows(text, change(right), digits, within=2.0)
        for change in _PRINTED_AS
    )


def _shows(text: str, value: float, digits: int, *, within: float = 1.01) -> bool:
    """Return whether a number printed with enough digits is this value, `within` so many halves of its last digit."""
    if "e" in text.lower() or len(text.lstrip("-+0.").replace(".", "")) < digits:
        return False
    return abs(float(text) - value) <= within * 0.5 * 10.0 ** -len(text.partition(".")[2])


def is_whole(value: float) -> bool:
    return abs(value - round(value)) < WHOLE_NUMBER


def reduced_after_evaluation(rank: RankObserved) -> list[tuple[Sequence[Collective], int]]:
    """Return the few numbers that the rank exchanged after each evaluation, with the number of samples it evaluated."""
    found: list[tuple[Sequence[Collective], int]] = []
    exchanged: list[Collective] = []
    samples = 0

    def close() -> None:
        if samples and exchanged and all(each.values and each.op in REDUCING_OPS for each in exchanged):
            found.append((tuple(exchanged), samples))
        exchanged.clear()

    for each in rank.of(Collective, EpochProgress, OptimizerStep):
        if isinstance(each, Collective):
            exchanged += [each] if each.op != "barrier" else []
            continue
        if isinstance(each, EpochProgress) and each.phase != "exhausted":
            continue
        close()
        samples = each.drawn if isinstance(each, EpochProgress) and not each.trained else 0
    close()
    return found
