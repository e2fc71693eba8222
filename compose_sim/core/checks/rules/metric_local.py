"""Are reported metrics those of all ranks, and reported once?"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from compose_sim.core.checks import Case, Result, not_applicable, passed, warned
from compose_sim.core.checks.evidence.loss_values import Losses
from compose_sim.core.events.observations import Observation, Observed, RankObserved

QUESTION = "Are reported metrics those of all ranks, and reported once?"

_NUMBER = re.compile(r"(?<![\w.])[-+]?\d+\.\d+(?:[eE][-+]?\d+)?(?![\w.]*\.\d)")
_ANY_NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
_METRIC = re.compile(
    r"loss|acc|error|metric|score|precision|recall|\bf1\b|\bauc\b|perplexity|\bppl\b|\bmae\b|\bmse\b|rmse|top-?\d|bleu|reward",
    re.IGNORECASE,
)
_EVALUATION = re.compile(
    r"val|test|eval|\bdev\b|acc|\bf1\b|\bauc\b|perplexity|ppl|precision|recall|top-?\d|bleu|score", re.IGNORECASE
)
_LABELLED = re.compile(r"\b(rank|node|host|local|worker|replica|shard|process|gpu|device)(?=\b|\d|_)", re.IGNORECASE)
_REDUCING = re.compile(r"reduce|gather|broadcast|all_to_all|scatter")
_FIX_REDUCE = (
    "Reduce it on all ranks before one of them reports it: `dist.all_reduce(value)` and divide by `dist.get_world_size()` "
    "(for an accuracy, sum hits and samples)."
)
_FIX_RANK = (
    "Let RANK 0 alone report: `if dist.get_rank() == 0:` in place of `if local_rank == 0:` "
    "(with Accelerate: `is_main_process`; its `print` asks `is_local_main_process`)."
)


@dataclass(frozen=True, slots=True)
class Line:
    """A line that a rank printed, with a metric in it."""

    rank: int
    text: str
    numbers: tuple[str, ...]

    @property
    def template(self) -> str:
        """The line without its numbers."""
        return _ANY_NUMBER.sub("#", self.text).strip()


def judge(case: Case) -> Result:
    """Compare what ranks printed with what they can have known."""
    observed = case.observed
    if observed.world_size < 2:
        return not_applicable("there is one rank only")
    lines = {rank.rank: _metric_lines(rank.rank, case.logs.get(rank.rank, ())) for rank in observed}
    if not any(lines.values()):
        return not_applicable("no rank printed a line with a metric in it")
    speakers = [rank for rank, said in lines.items() if said]
    result = _every_node(observed, lines)
    if result is None and len(speakers) == 1:
        said = lines[speakers[0]]
        result = _own_loss(observed, said) or _own_evaluation(observed, said)
    if result:
        return result
    if len(speakers) > 1:
        return passed(f"ranks {', '.join(map(str, speakers))} report metrics, each its own")
    return passed(f"rank {speakers[0]} alone reports metrics, and none is known to be only its own")


def _metric_lines(rank: int, lines: Sequence[str]) -> list[Line]:
    found = []
    for text in lines:
        if _METRIC.search(text) and not _LABELLED.search(text) and "Warning" not in text and len(text) < 1000:
            numbers = tuple(_NUMBER.findall(text))
            if numbers:
                found.append(Line(rank, text.strip(), numbers))
    return found


def _every_node(observed: Observed, lines: Mapping[int, Sequence[Line]]) -> Result | None:
    """The same kind of line from the first rank of every node, and from no other."""
    first = {rank.rank for rank in observed if rank.local_rank == 0}
    if len(observed.nodes) < 2 or len(first) == observed.world_size or len(first) != len(observed.nodes):
        return None
    if any("transformers" in each["names"] and not each["asks_for_node"] for each in observed.of("libraries")):
        return None  # its Trainer logs once a node, and the person's own code never asks for that
    speakers: dict[str, set[int]] = {}
    for rank, said in lines.items():
        for line in said:
            speakers.setdefault(line.template, set()).add(rank)
    for template, ranks in speakers.items():
        if ranks == first:
            line = next(line for line in lines[min(first)] if line.template == template)
            told = ", ".join(map(str, sorted(first)))
            return warned(
                f"ranks {told}, those with LOCAL_RANK 0, each report {line.text!r}: once a node in place of once",
                fix=_FIX_RANK,
                ranks=tuple(sorted(first)),
            )
    return None


def _own_loss(observed: Observed, said: Sequence[Line]) -> Result | None:
    """Lines of the only rank that reports, with numbers that are its own loss and not the mean of all ranks'."""
    rank = said[0].rank
    losses = Losses(observed, rank)
    if not losses.tell_apart:
        return None
    own: list[tuple[Line, str, float]] = []
    shared = 0
    told = [line for line in said if "loss" in line.text.lower() or not _EVALUATION.search(line.text)]
    for line in told:
        matches = [losses.match(number) for number in line.numbers]
        if any(match is not None and not match.is_own for match in matches):
            shared += 1
        else:
            found = [(number, match) for number, match in zip(line.numbers, matches, strict=True) if match]
            own += [(line, number, match.others) for number, match in found[:1]]
    if own and (len(own) >= 2 or len(told) == 1) and len(own) * 2 >= len(told) and shared == 0:
        line, number, others = own[0]
        return warned(
            f"rank {rank} reports {line.text!r}: {number} is the loss of its own batches, {others:.5g} the mean over all ranks; "
            f"so in {len(own)} of {len(told)} such lines",
            fix=_FIX_REDUCE,
            ranks=(rank,),
        )
    return None if shared else _never_reduced(observed, said, losses)


def _never_reduced(observed: Observed, said: Sequence[Line], losses: Losses) -> Result | None:
    """A training loss reported again and again by a script that never exchanges anything but gradients."""
    told = [line for line in said if "loss" in line.text.lower() and not _EVALUATION.search(line.text)]
    exchanged = any(_reduces(each) for each in observed.ranks[said[0].rank].of("collective", "loose"))
    evaluated = any(each["phase"] == "exhausted" and not each["trained"] for each in observed.of("epoch"))
    if len(told) < 2 or exchanged or evaluated or observed.ranks[said[0].rank].last("collectives"):
        return None
    return warned(
        f"rank {said[0].rank} reports {told[0].text!r} and {len(told) - 1} more such lines, and no rank ever reduces a metric: "
        "it can only be that of its own batches",
        fix=_FIX_REDUCE,
        ranks=(said[0].rank,),
    )


def _reduces(each: Observation) -> bool:
    """Whether a rank may have learnt something of others: what it broadcasts itself tells it nothing."""
    own = each["root"] == each.rank and str(each["op"]).startswith(("broadcast", "scatter"))
    return each.kind == "loose" or (
        not own and not str(each["op"]).startswith("DDP") and bool(_REDUCING.search(str(each["op"])))
    )


def _own_evaluation(observed: Observed, said: Sequence[Line]) -> Result | None:
    """Metrics of an evaluation of which each rank has done a part, without anything exchanged afterwards."""
    told = [line for line in said if _EVALUATION.search(line.text)]
    rank = observed.ranks[said[0].rank]
    if not told:
        return None
    loaders = {each["loader"]: each for each in rank.of("loader")}
    passages = [
        (each, alone) for each, alone in _evaluations(rank) if _is_sharded(observed, loaders.get(each["loader"]))
    ]
    first = next((each.index for each in rank.of("step")), 0)
    passages = [each for each in passages if each[0].index > first] or passages  # before the first step it is a trial
    shards = [each for each, alone in passages if alone]
    if not shards or len(shards) < len(passages):  # the report may be of those whose result is reduced
        return None
    loader = loaders[shards[0]["loader"]]
    at = loader["at"] or loader["made"]
    return warned(
        f"rank {rank.rank} reports {told[0].text!r} after evaluating its own share of the samples: "
        "nothing is exchanged between that and the report",
        fix=_FIX_REDUCE,
        ranks=(rank.rank,),
        **({"file": at[0], "line": at[1]} if at else {}),
    )


def _evaluations(rank: RankObserved) -> Iterator[tuple[Observation, bool]]:
    """Each finished passage of a loader without training, and whether nothing was exchanged in it and until training goes on."""
    finished: list[Observation] = []
    begun: dict[Any, Observation] = {}  # by loader: its passage that was not seen to be exhausted
    exchanged: dict[Any, bool] = {}  # by loader: whether anything was since its passage began
    counted = _counted(rank)
    for each in rank.observations:
        if each.kind == "epoch" and each["phase"] == "begun":
            begun[each["loader"]] = each
            exchanged[each["loader"]] = False
        elif each.kind in ("collective", "loose") and _reduces(each):
            exchanged = dict.fromkeys(exchanged, True)
        elif each.kind == "epoch" and each["phase"] == "exhausted" and not each["trained"]:
            begun.pop(each["loader"], None)
            finished.append(each)
        elif each.kind in ("step", "end"):
            finished += [passage for passage in begun.values() if counted.get(_key(passage), each.index) < each.index]
            yield from ((passage, not exchanged.get(passage["loader"])) for passage in finished)
            finished, begun = [], {}


def _counted(rank: RankObserved) -> dict[tuple[Any, Any], int]:
    """The passages whose batches were counted and not exhausted, as Lightning does: where the last batch that was noted is."""
    lengths = {each["loader"]: _batches(each) for each in rank.of("loader")}
    closed = [each for each in rank.of("epoch") if each["phase"] == "closed" and not each["trained"]]
    whole = {_key(each) for each in closed if each["batches"] and each["batches"] == lengths.get(each["loader"])}
    return {_key(each): each.index for each in rank.of("batch") if _key(each) in whole}


def _batches(loader: Observation) -> int:
    """How many batches a passage over a loader has."""
    sampling, size = loader["sampling"] or {}, int(loader["batch_size"] or 0)
    if not size or not loader["length"]:
        return 0
    ranks = int(sampling.get("num_replicas") or 1)
    share = int(loader["length"]) // ranks if sampling.get("drop_last") else ceil(int(loader["length"]) / ranks)
    return share // size if loader["drop_last"] else ceil(share / size)


def _key(each: Observation) -> tuple[Any, Any]:
    return each["loader"], each["epoch"]


def _is_sharded(observed: Observed, loader: Observation | None) -> bool:
    """Whether each rank's loader, made on the same line, has samples of its own."""
    if loader is None:
        return False
    sampling = loader["sampling"] or {}
    if (sampling.get("num_replicas") or 1) > 1:
        return True
    seen = set()
    for rank in observed:
        numbers = {each["loader"] for each in rank.of("loader") if each["made"] == loader["made"]}
        rows = tuple(tuple(each["rows"] or ()) for each in rank.of("batch") if each["loader"] in numbers)
        if not any(rows):
            return False
        seen.add(rows[:4])
    return len(seen) == observed.world_size
