"""Compare the results of evaluations that a rank printed with those that one rank prints with the same weights and all samples."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from compose_sim.core.checks import Case
from compose_sim.core.checks.reported_means import EVALUATION, MIN_DIGITS, MIN_EVALUATIONS, NUMBER
from compose_sim.core.checks.source import has_own_randomness
from compose_sim.core.events.observations import Observed, RankObserved
from compose_sim.node.records.models import OptimizerStep
from compose_sim.node.records.process_groups import Collective

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


@dataclass(frozen=True, slots=True, kw_only=True)
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
            first, other = unlike[0]
            return UnlikeOne(
                name=first.name, printed=first.text, alone=other, evaluations=len(pairs), unlike=len(unlike)
            )
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
            return UnlikeOne(
                name=name, printed=unlike[0][0], alone=unlike[0][1], evaluations=len(found), unlike=len(unlike)
            )
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
    if min(len(each.lstrip("-+0.").replace(".", "")) for each in (one, other)) < MIN_DIGITS:
        return False
    first, second = float(one), float(other)
    digits = min(len(each.partition(".")[2]) for each in (one, other))
    return abs(first - second) > max(apart * max(abs(first), abs(second)), 2 * 10.0**-digits)
