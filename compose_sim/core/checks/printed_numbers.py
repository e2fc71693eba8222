"""
Read the numbers that ranks print of an evaluation.

They are compared with the means of what ranks reduced after it, which may be no means over all samples, and with what one rank prints
with the same weights and all samples.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import exp, sqrt

from compose_sim.core.checks import Case
from compose_sim.core.checks.source import has_own_randomness
from compose_sim.core.checks.tolerances import WHOLE_NUMBER
from compose_sim.core.events.observations import Observed, RankObserved
from compose_sim.node.records.data import EpochProgress
from compose_sim.node.records.models import OptimizerStep
from compose_sim.node.records.process_groups import Collective
from compose_sim.node.records.record import Place

NUMBER = re.compile(r"(?<![\w.])[-+]?\d+\.\d+(?:[eE][-+]?\d+)?(?![\w.]*\.\d)")
RESULTS = (
    r"acc|perplexity|\bppl\b|precision|recall|top-?\d|bleu|score"
    r"|(?<![a-z\d])(?:f1|auc|m?iou|dice|m?ap|psnr|ssim|rouge|wer|cer|ndcg|mrr)(?![a-z])"
)
EVALUATION = re.compile(rf"val|test|eval|\bdev\b|{RESULTS}", re.IGNORECASE)
# An AUC or a correlation of some samples, directly before its number: unlike accuracy or recall@k, it is no mean over them. Nor is a
# macro F1, but that of answers to questions is.
_UNLIKE_A_MEAN = re.compile(
    r"(?<![a-z\d])((macro|micro|weighted)[-_ ]f1|auc|auroc|kappa|mcc|r2)( score)?\W{1,3}$", re.IGNORECASE
)
_IS_MEAN = re.compile(r"mean|avg|average|\bper\b|\bover\b|user|fold", re.IGNORECASE)
_RANKS_APART = 0.002  # relative: the numbers of an evaluation on two ranks
MIN_EVALUATIONS = 2
_MIN_DIGITS, _MIN_DIGITS_OF_ONE = 3, 4  # of printed numbers, and of a single one: fewer may be alike by chance
_PRINTED_AS: tuple[Callable[[float], float], ...] = (
    lambda mean: mean,
    lambda mean: 100 * mean,
    lambda mean: exp(min(mean, 100)),
    lambda mean: sqrt(abs(mean)),
)
_Number = tuple[tuple[Collective, ...], int]  # what all ranks exchanged, and a place in these tensors
_REDUCING_OPS = ("all_reduce", "reduce", "all_gather", "all_gather_into_tensor")
# Relative differences: more than a few samples make that are judged otherwise, or batches of which means are averaged. The last two are
# for batches of which the shortest is at least half full, and for a result that was compared only once.
_APART, _APART_MEANS, _APART_UNEVEN, _APART_ONCE = 0.002, 0.02, 0.1, 0.2
_HALF_FULL = 0.5
# Whole words, also between underscores: "f1" is not a part of "bf16", nor is "map" one of "mapped".
_NO_MEAN = re.compile(
    r"(?<![a-z\d])(spearman|pearson|correlation|f1|auc|auroc|precision|recall|perplexity|ppl|bleu|rouge|iou|miou|map|kappa|mcc|r2)(?![a-z])",
    re.IGNORECASE,
)
_NAMED = re.compile(r"(?<![a-z])(val|valid|validation|test|eval|evaluation|dev|held[ -]?out)(?![a-z])", re.IGNORECASE)
_TRAINING = re.compile(r"train|loss|step|batch", re.IGNORECASE)
# What evaluations do not measure, or measure of other samples at each number of ranks, and the units of that
_OTHER = re.compile(
    r"train|\blr\b|time|took|elapsed|speed|throughput|latency|duration|reward|return|memory|\bnorm|best|seen|count|samples",
    re.IGNORECASE,
)
_UNIT = re.compile(r"\s{0,2}(ms|sec|seconds?|s|it|[kmg]i?b|samples|tokens|tok)?(/\w+)?(?![\w%])", re.IGNORECASE)


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
        has_counts = any(all(_is_whole(each.values[place]) for each in number) for number, place in places)
        if has_counts or len(set(samples.values())) == 1:
            continue
        for number, place in places:
            found = _mean_of_means(number, place, samples)
            is_averaged = number[0].reduce == "AVG" and len(number[0].values) == 1  # several may be a small tensor
            if found and (found.are_shares or is_averaged):
                yield found
            elif found:
                maybe.setdefault((found.at, place), []).append(found)
    reports = (line for lines in logs.values() for line in lines if EVALUATION.search(line))
    printed = [text for line in reports for text in NUMBER.findall(line)]
    for of_place in maybe.values():
        digits = _MIN_DIGITS if len(of_place) >= MIN_EVALUATIONS else _MIN_DIGITS_OF_ONE
        if all(any(_is_printed(each.mean, each.weighted, text, digits) for text in printed) for each in of_place):
            yield of_place[0]


def _exchanged_together(observed: Observed) -> Iterator[tuple[list[_Number], dict[int, int]]]:
    """Yield what all ranks exchanged after an evaluation, with each place in a tensor, and how many samples each rank evaluated."""
    for together in zip(*map(_reduced_after_evaluation, observed), strict=False):
        numbers = list(zip(*(exchanged for exchanged, _ in together), strict=False))
        if all(len(exchanged) == len(numbers) for exchanged, _ in together):
            places = [(each, place) for each in numbers for place in range(min(len(one.values) for one in each))]
            yield places, {exchanged[0].rank: count for exchanged, count in together}


def _mean_of_means(reduced: Sequence[Collective], place: int, samples: Mapping[int, int]) -> MeanOfMeans | None:
    means = {each.rank: each.values[place] for each in reduced}
    hits = [means[rank] * samples[rank] for rank in means]
    are_shares = all(0 <= each <= 1 for each in means.values()) and all(map(_is_whole, hits))
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
        is_apart = max(widest.means.values()) - min(widest.means.values()) > _RANKS_APART * abs(widest.mean)
        is_reported = all(
            any(_shows(text, times * each.mean, _MIN_DIGITS) for text in printed for times in (1, 100))
            for each in means
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


def _is_printed(of_means: float, right: float, text: str, digits: int) -> bool:
    """Return whether this is the mean of means, or a percentage, perplexity or root of it, in so many digits, and not right."""
    return any(
        _shows(text, change(of_means), digits) and not _shows(text, change(right), digits, within=2.0)
        for change in _PRINTED_AS
    )


def _shows(text: str, value: float, digits: int, *, within: float = 1.01) -> bool:
    """Return whether a number printed with enough digits is this value, `within` so many halves of its last digit."""
    if "e" in text.lower() or _digits(text) < digits:
        return False
    return abs(float(text) - value) <= within * 0.5 * 10.0 ** -len(text.partition(".")[2])


def _digits(text: str) -> int:
    return len(text.lstrip("-+0.").replace(".", ""))


def _is_whole(value: float) -> bool:
    return abs(value - round(value)) < WHOLE_NUMBER


def _reduced_after_evaluation(rank: RankObserved) -> list[tuple[Sequence[Collective], int]]:
    """Return the few numbers that the rank exchanged after each evaluation, with the number of samples it evaluated."""
    found: list[tuple[Sequence[Collective], int]] = []
    exchanged: list[Collective] = []
    samples = 0

    def close() -> None:
        if samples and exchanged and all(each.values and each.op in _REDUCING_OPS for each in exchanged):
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


@dataclass(frozen=True, slots=True)
class PrintedNumber:
    """A number that names an evaluation: its line without numbers, its place there, and which of such lines this is."""

    template: str
    place: int
    line: int
    name: str
    text: str

    @property
    def key(self) -> tuple[str, int, int]:
        """What the same number has in another run."""
        return self.template, self.place, self.line


@dataclass(frozen=True, slots=True)
class UnlikeOne:
    """Of several evaluations, those whose printed result differs from that of one rank; the first of them."""

    name: str
    printed: str
    alone: str
    evaluations: int
    unlike: int


def unlike_one(lines: Sequence[str], of_one: Sequence[str], *, shortest: float, evaluations: int) -> UnlikeOne | None:
    """
    Return the first result that differs at most evaluations by more than its last digit.

    What is printed more often than a rank evaluates is not the result of that. If the `shortest` batch is less than half full, only
    numbers count that are no means of batches.
    """
    means_apart = _APART_MEANS if shortest == 1 else _APART_UNEVEN
    alone = {each.key: each.text for each in _numbers(of_one)}
    compared: dict[tuple[str, int], list[tuple[PrintedNumber, str]]] = {}
    printed = Counter[tuple[str, int]]()
    for each in _numbers(lines):
        printed[each.template, each.place] += 1
        if each.key in alone and (shortest >= _HALF_FULL or _NO_MEAN.search(each.name)):
            compared.setdefault((each.template, each.place), []).append((each, alone[each.key]))
    for number, pairs in compared.items():
        apart = _APART if _NO_MEAN.search(pairs[0][0].name) else means_apart
        apart = apart if len(pairs) >= MIN_EVALUATIONS else _APART_ONCE
        unlike = [(each, other) for each, other in pairs if _differ(each.text, other, apart)]
        is_result = printed[number] <= evaluations + 1  # one before the first step is not seen
        if is_result and 2 * len(unlike) > len(pairs):
            first, alone_printed = unlike[0]
            return UnlikeOne(first.name, first.text, alone_printed, evaluations=len(pairs), unlike=len(unlike))
    return None


def only_computes(case: Case) -> bool:
    """Return whether ranks train nothing, but compute something of divided data that one rank can compute as well, as k-means does."""
    observed, has_printed = case.observed, case.verdict == "passed" and any(case.logs.values())
    if not has_printed or observed.world_size < 2 or observed.first(OptimizerStep):
        return False
    given = [[each for each in rank.of(Collective) if "float" in str(each.dtype)] for rank in observed]
    # What one rank sends to all, such as the first centers, it may have taken from its own part of the data.
    is_sent = any(each.op == "broadcast" for of_rank in given for each in of_rank)
    return all(given) and not is_sent and not has_own_randomness(case.sources)


def exchange_alike(observed: Observed, of_one: Observed) -> bool:
    """Return whether one rank exchanges as often, and tensors of the same shapes: it goes through the same rounds."""
    alone = next((_exchanged(rank) for rank in of_one), [])
    return bool(alone) and all(_exchanged(rank) == alone for rank in observed)


def _exchanged(rank: RankObserved) -> list[tuple[object, ...]]:
    return [(each.op, each.shapes, each.at) for each in rank.of(Collective)]


def unlike_computed(lines: Sequence[str], of_one: Sequence[str]) -> UnlikeOne | None:
    """Return the first number that one rank, which computes the same of all data, prints otherwise in most lines like this."""
    compared: dict[tuple[str, int], list[tuple[str, str]]] = {}
    for line, other in zip(lines, of_one, strict=False):
        if _template(line) == _template(other) and not _OTHER.search(line):
            for place, pair in enumerate(zip(NUMBER.findall(line), NUMBER.findall(other), strict=True)):
                compared.setdefault((_template(line), place), []).append(pair)
    for (template, place), found in compared.items() if len(lines) == len(of_one) else ():
        largest = max(abs(float(one)) for one, _ in found)
        unlike = [
            (one, other)
            for one, other in found
            if _differ(one, other, _APART_MEANS) and abs(float(one) - float(other)) > _APART_MEANS * largest
        ]
        if 2 * len(unlike) > len(found):
            name = template.split("#")[place].rpartition("%")[2].strip(" :=,|([{'\"\t")
            return UnlikeOne(name, *unlike[0], evaluations=len(found), unlike=len(unlike))
    return None


def _numbers(lines: Sequence[str]) -> Iterator[PrintedNumber]:
    """Yield the numbers that name an evaluation; in a line of a training step, only those that do so themselves."""
    seen = Counter[str]()
    for line in lines:
        if len(line) > 1000 or not EVALUATION.search(line):
            continue
        template = _template(line)
        end, name = 0, ""
        for place, each in enumerate(NUMBER.finditer(line)):
            between = line[end : each.start()]
            name = between if any(map(str.isalpha, between)) else name  # as in "val 0.5/0.8"
            end = each.end()
            is_named = _NAMED.search(name) or (EVALUATION.search(name) and not _TRAINING.search(line))
            unit = _UNIT.match(line, end)
            if is_named and not _OTHER.search(name) and not (unit and any(unit.groups())):
                yield PrintedNumber(template, place, seen[template], name.strip(" :=,|([{'\"\t"), each.group())
        seen[template] += 1


def _template(line: str) -> str:
    """Return a line without its numbers."""
    return NUMBER.sub("#", re.sub(r"(?<![\w.])\d+(?![\w.])", "%", line)).strip()


def _differ(one: str, other: str, apart: float) -> bool:
    """Return whether two printed numbers differ clearly, and by more than their digits may hide."""
    if min(_digits(one), _digits(other)) < _MIN_DIGITS:
        return False
    first, second = float(one), float(other)
    digits = min(len(each.partition(".")[2]) for each in (one, other))
    return abs(first - second) > max(apart * max(abs(first), abs(second)), 2 * 10.0**-digits)
