"""
Judge whether reported metrics are those of all ranks, and are reported once.

The loss of a training step is left alone: nearly every script prints that of rank 0, to watch it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from compose_sim.core.checks import (
    SEVERAL_RANKS,
    Case,
    Result,
    check,
    not_applicable,
    passed,
    ranks_text,
    warned,
    where,
)
from compose_sim.core.checks.printed_numbers import (
    EVALUATION,
    MIN_EVALUATIONS,
    NUMBER,
    RESULTS,
    MeanOfMeans,
    means_of_means,
    means_of_ranks,
    unlike_computed,
    unlike_one,
)
from compose_sim.core.checks.repeated_steps import beyond_tolerance, comparable, noise, steps_of
from compose_sim.core.checks.rules.copies import RanksEvaluated, evaluations
from compose_sim.core.checks.source import cut_rows
from compose_sim.core.events.observations import Observed, RankObserved
from compose_sim.node.records.data import Batch, EpochProgress, LoaderInfo
from compose_sim.node.records.devices_and_files import FileUse, TrainerLibraries
from compose_sim.node.records.models import DdpModel, EvaluatedModel, OptimizerStep
from compose_sim.node.records.process_groups import Collective, UntrackedWait
from compose_sim.node.records.record import Place, Record
from compose_sim.node.records.replays import EvaluationDraws
from compose_sim.node.records.script import ScriptEnd

_ANY_NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
_METRIC = re.compile(
    rf"{RESULTS}|loss|error|metric|\bmae\b|\bmse\b|rmse|reward|inertia|distortion|objective|likelihood|variance",
    re.IGNORECASE,
)
_LABELED = re.compile(r"\b(rank|node|host|local|worker|replica|shard|process|gpu|device)(?=\b|\d|_)", re.IGNORECASE)
_REDUCING = re.compile(r"reduce|gather|broadcast|all_to_all|scatter")


@dataclass(frozen=True, slots=True)
class MetricLine:
    """A line with a metric that a rank printed."""

    rank: int
    text: str

    @property
    def template(self) -> str:
        """The line without its numbers."""
        return _ANY_NUMBER.sub("#", self.text).strip()


@check(
    "metric-local",
    "Are reported metrics those of all ranks, and reported once?",
    SEVERAL_RANKS,
    may_follow=("rank-confusion",),
)
def metric_local(case: Case) -> Result:
    """Compare what ranks printed with what they can have known."""
    observed = case.observed
    found = next(means_of_means(observed, case.logs), None)
    if found:
        return _wrong_mean(found)
    if unlike := _mean_of_ranks(case) or _cut_by_rank(case):
        return unlike
    lines = {rank.rank: _metric_lines(rank.rank, case.logs.get(rank.rank, ())) for rank in observed}
    speakers = [rank for rank, printed in lines.items() if printed]
    if not speakers:
        return not_applicable("no rank printed a line with a metric")
    result = _every_node(observed, lines)
    if result is None and len(speakers) == 1:
        own = lines[speakers[0]]
        result = _own_evaluation(observed, own) or _own_inputs(observed, own) or _printed_unlike_one_rank(case, own)
    if result:
        return result
    unjudged = _not_judged(observed)
    if len(speakers) > 1:
        return passed(f"{ranks_text(speakers)} each report metrics{unjudged and f' ({unjudged})'}")
    return passed(
        f"only rank {speakers[0]} reports metrics; that of no evaluation is known to be only its own "
        f"({unjudged or 'losses of steps are not judged'})"
    )


def _not_judged(observed: Observed) -> str:
    """Name a line where ranks add up numbers that may be sums, or means that need the ranks' counts as weights."""
    for each in observed.of(Collective):
        added = each.op == "all_reduce" and each.reduce in (None, "SUM", "AVG") and each.at is not None
        if added and len(each.values) == 1 and not each.values[0].is_integer():
            return f"not judged: whether the ranks' number reduced{where(each.at)} is a sum, or a mean over unequally many samples"
    return ""


def _wrong_mean(found: MeanOfMeans) -> Result:
    counts = ", ".join(f"rank {rank}: {count}" for rank, count in sorted(found.samples.items()))
    kind = "shares of hits" if found.are_shares else "means"
    return warned(
        f"the ranks' own {kind} are averaged ({found.mean:.4g}), although they evaluated different numbers of samples "
        f"({counts}): over all samples it is {found.weighted:.4g}",
        fix="Sum what is counted, and the samples, over the ranks (`dist.all_reduce(torch.tensor([total, samples]))`), then divide.",
        at=found.at,
        ranks=sorted(found.samples),
    )


def _metric_lines(rank: int, lines: Sequence[str]) -> list[MetricLine]:
    found = []
    for text in lines:
        is_metric = len(text) < 1000 and _METRIC.search(text) and NUMBER.search(text)
        if is_metric and not _LABELED.search(text) and "Warning" not in text:
            found.append(MetricLine(rank, text.strip()))
    return found


def _every_node(observed: Observed, lines: Mapping[int, Sequence[MetricLine]]) -> Result | None:
    """Find the same kind of line from the first rank of every node, and from no other rank."""
    first = {rank.rank for rank in observed if rank.local_rank == 0}
    if len(observed.nodes) < 2 or len(first) == observed.world_size or len(first) != len(observed.nodes):
        return None
    if any(len(each.ranks) < observed.world_size for each in observed.of(DdpModel)):
        return None  # ranks train several models, and each may have its report
    if any("transformers" in each.names and not each.asks_for_node for each in observed.of(TrainerLibraries)):
        return None  # the library's Trainer logs once per node, and the user's code never asks for that
    speakers: dict[str, set[int]] = {}
    for rank, printed in lines.items():
        for line in printed:
            speakers.setdefault(line.template, set()).add(rank)
    for template, ranks in speakers.items():
        if ranks == first:
            line = next(line for line in lines[min(first)] if line.template == template)
            return warned(
                f"{ranks_text(first)}, those with LOCAL_RANK 0, each report {line.text!r}: once per node, not once",
                fix="Let only RANK 0 report: `if dist.get_rank() == 0:` instead of `if local_rank == 0:` (with Accelerate: "
                "`is_main_process`; its `print` tests `is_local_main_process`).",
                ranks=sorted(first),
            )
    return None


def _exchanges(each: Record) -> bool:
    """Return whether a rank may have learned something from others; what it broadcasts itself is not new to it."""
    if isinstance(each, Collective):
        own = each.root == each.rank and each.op.startswith(("broadcast", "scatter"))
        return not own and bool(_REDUCING.search(each.op))
    return isinstance(each, UntrackedWait)


def _own_evaluation(observed: Observed, printed: Sequence[MetricLine]) -> Result | None:
    """Find metrics of an evaluation of which each rank did a part, with nothing exchanged afterwards."""
    of_evaluation = [line for line in printed if EVALUATION.search(line.text)]
    rank = observed.ranks[printed[0].rank]
    if not of_evaluation:
        return None
    loaders = {each.loader: each for each in rank.of(LoaderInfo)}
    passages = [
        (each, alone)
        for each, alone in _evaluations(rank, _written(observed, rank))
        if _is_sharded(observed, loaders.get(each.loader))
    ]
    step = rank.first(OptimizerStep)
    # An evaluation before the first step is a trial.
    passages = [each for each in passages if each[0].index > (step.index if step else 0)] or passages
    shards = [each for each, alone in passages if alone]
    if not shards or len(shards) < len(passages):  # the report may be of those whose result is reduced
        return None
    loader = loaders[shards[0].loader]
    return warned(
        f"rank {rank.rank} reports {of_evaluation[0].text!r} after evaluating its own part of the samples, and nothing is exchanged "
        "in between",
        fix="Reduce it over all ranks before one of them reports it: `dist.all_reduce(value)`, then divide by "
        "`dist.get_world_size()` (for an accuracy, sum hits and samples).",
        at=loader.at or loader.made,
        ranks=(rank.rank,),
    )


def _own_inputs(observed: Observed, printed: Sequence[MetricLine]) -> Result | None:
    """Find metrics of evaluations without a loader, in each of which ranks gave the model other inputs and then exchanged nothing."""
    line = next((each for each in printed if EVALUATION.search(each.text)), None)
    rank = observed.ranks[printed[0].rank]
    found = [each for each in evaluations(observed) if _is_divided(each, observed.world_size)]
    is_rare = 2 * len(found) <= sum(1 for _ in rank.of(OptimizerStep))  # no rollouts, and no teacher
    if line is None or len(found) < MIN_EVALUATIONS or not is_rare:
        return None
    own, of_others = [each.by_rank[rank.rank] for each in found], _written(observed, rank)
    if any(_exchanges_after(rank, each.index, of_others) for each in own):
        return None
    return warned(
        f"rank {rank.rank} reports {line.text!r}, and nothing is exchanged after each of {len(own)} evaluations, in which every rank "
        f"gives the {own[0].type} inputs of its own",
        fix="Add up what the metric is made of over all ranks before it is used: `dist.all_reduce(torch.tensor([total, count]))`.",
        at=own[0].at,
        ranks=(rank.rank,),
    )


def _is_divided(found: RanksEvaluated, size: int) -> bool:
    """Return whether all ranks evaluated the model that they train, each with other inputs."""
    each = found.by_rank.values()
    trained = all(one.wrapped or one.held for one in each)
    return trained and len({one.inputs for one in each if one.inputs}) == len(found.by_rank) == size


def _exchanges_after(rank: RankObserved, index: int, of_others: Collection[str]) -> bool:
    """Return whether a rank exchanges anything, also by files, after this record and before it goes on training."""
    for each in rank.records[index + 1 :]:
        if isinstance(each, (OptimizerStep, ScriptEnd)):
            return False
        if _exchanges(each) or _reads_one(each, of_others):
            return True
    return False


def _reads_one(each: Record, of_others: Collection[str]) -> bool:
    return isinstance(each, FileUse) and each.op == "read" and each.path in of_others


def _written(observed: Observed, rank: RankObserved) -> set[str]:
    """Return the files that other ranks wrote: ranks may give each other their results in files."""
    uses = [each for each in observed.of(FileUse) if each.rank != rank.rank and each.op != "read"]
    return {path for each in uses for path in (each.path, each.to) if path}


def _evaluations(rank: RankObserved, of_others: Collection[str] = ()) -> Iterator[tuple[EpochProgress, bool]]:
    """
    Yield each finished epoch without training, and whether nothing was exchanged in it and until training continued.

    Reading one of the files `of_others`, which other ranks wrote, is an exchange.
    """
    finished: list[EpochProgress] = []
    begun: dict[int, EpochProgress] = {}  # loader -> the epoch that was not seen to be exhausted
    exchanged: dict[int, bool] = {}  # loader -> whether ranks exchanged anything since the epoch began
    counted = _counted(rank)
    for each in rank.records:
        if _exchanges(each) or _reads_one(each, of_others):
            exchanged = dict.fromkeys(exchanged, True)
        elif isinstance(each, EpochProgress) and each.phase == "begun":
            begun[each.loader] = each
            exchanged[each.loader] = False
        elif isinstance(each, EpochProgress) and each.only_read:
            begun.pop(each.loader, None)
            finished.append(each)
        elif isinstance(each, (OptimizerStep, ScriptEnd)):
            finished += [epoch for epoch in begun.values() if counted.get(_key(epoch), each.index) < each.index]
            yield from ((epoch, not exchanged.get(epoch.loader)) for epoch in finished)
            finished, begun = [], {}


def _counted(rank: RankObserved) -> dict[tuple[int, int], int]:
    """Return the epochs whose batches are counted instead of exhausted, as Lightning does, with the index of the last batch."""
    lengths = {each.loader: _batches(each) for each in rank.of(LoaderInfo)}
    closed = [each for each in rank.of(EpochProgress) if each.phase == "closed" and not each.trained]
    whole = {_key(each) for each in closed if each.batches and each.batches == lengths.get(each.loader)}
    return {_key(each): each.index for each in rank.of(Batch) if _key(each) in whole}


def _batches(loader: LoaderInfo) -> int:
    """Return how many batches an epoch of a loader has."""
    if not loader.batch_size or not loader.length:
        return 0
    ranks = loader.sampling.num_replicas or 1
    share = loader.length // ranks if loader.sampling.drop_last else ceil(loader.length / ranks)
    return share // loader.batch_size if loader.drop_last else ceil(share / loader.batch_size)


def _key(each: EpochProgress | Batch) -> tuple[int, int]:
    return each.loader, each.epoch


def _is_sharded(observed: Observed, loader: LoaderInfo | None) -> bool:
    """Return whether the loaders of the ranks, made on the same line, have different samples."""
    if loader is None:
        return False
    if (loader.sampling.num_replicas or 1) > 1:
        return True
    seen = set()
    for rank in observed:
        numbers = {each.loader for each in rank.of(LoaderInfo) if each.made == loader.made}
        rows = tuple(each.rows or () for each in rank.of(Batch) if each.loader in numbers)
        if not any(rows):
            return False
        seen.add(rows[:4])
    return len(seen) == observed.world_size


def _has_weights_of_one_rank(case: Case) -> bool:
    """Return whether the replay at world size 1 evaluates the weights of the run: it takes those after each step from the record."""
    steps = comparable(steps_of(case.single))
    return bool(steps) and not beyond_tolerance(steps, case) and not noise(case.observed)


def _printed_unlike_one_rank(case: Case, printed: Sequence[MetricLine]) -> Result | None:
    """Find results that one rank with the same weights and all samples prints otherwise."""
    if case.single is None:
        return _computed_unlike_one_rank(case, printed)
    if not _has_weights_of_one_rank(case) or not _evaluates_the_same(case) or case.observed.first(EvaluationDraws):
        return None
    rank = case.observed.ranks[printed[0].rank]
    found = unlike_one(
        [each.text for each in printed],
        case.single_log,
        shortest=min(_shortest_batch(each) for each in (case.observed, case.single)),
        evaluations=max(len({each.steps for each in rank.of(EvaluatedModel)}), len(_drawn_to_evaluate(rank))),
    )
    if found is None:
        return None
    return warned(
        f"rank {printed[0].rank} prints {found.name} {found.printed}, but one rank with the same weights and all samples prints "
        f"{found.alone}: {found.unlike} of {found.evaluations} evaluations differ",
        fix="Find what depends on the number of ranks after the evaluation: an order of gathered predictions, samples that are counted "
        "twice or not at all, a sum that is divided by the wrong count, a threshold or a best value of one rank.",
        at=next((each.at for each in rank.of(EvaluatedModel) if each.at), None),
        ranks=(printed[0].rank,),
    )


def _cut_by_rank(case: Case) -> Result | None:
    """Find rows of a share that is dealt out in turn and padded, which ranks gather one behind the other and cut at the end."""
    found = {(each.file, each.line): each for each in cut_rows(case.sources)}
    rank = case.observed.ranks[0]
    dealt: tuple[LoaderInfo, int] | None = None  # the last loader that was only read, and the rows of this rank
    loaders = {each.loader: each for each in rank.of(LoaderInfo)}
    for each in rank.of(EpochProgress, Collective) if found else ():
        if isinstance(each, EpochProgress):
            dealt = (loaders[each.loader], each.drawn) if each.only_read and each.loader in loaders else None
            continue
        cut = next((cut for (file, line), cut in found.items() if each.at and _is_at(each.at, file, line)), None)
        if dealt is None or cut is None or [shape[:1] for shape in each.shapes] != [(dealt[1],)]:
            continue
        info, size = dealt[0], len(each.group)
        is_in_turn = info.samplers[-1:] == ("DistributedSampler",) and info.sampling.num_replicas == size
        if is_in_turn and info.length and info.length % size and not info.sampling.drop_last:
            return warned(
                f"DistributedSampler deals the {info.length} samples of {info.data} out in turn, and repeats {-info.length % size} to "
                f"fill the last turn; `{cut.text}` in line {cut.cut_in} joins the rows rank by rank and cuts the end: what was "
                "repeated stays, other rows are lost, and the order is not that of the data set",
                fix="Put the rows back in turn before they are cut: `torch.stack(parts, dim=1).flatten(0, 1)[:len(data)]`.",
                at=each.at,
            )
    return None


def _is_at(at: Place, file: str, line: int) -> bool:
    return at[1] == line and f"/{at[0]}".endswith(f"/{file}")


def _computed_unlike_one_rank(case: Case, printed: Sequence[MetricLine]) -> Result | None:
    rank, ours = printed[0].rank, {each.text for each in printed}
    logs = case.logs.get(rank, ()), case.single_log
    lines, of_one = ([each for each in log if _METRIC.search(each) and "error" not in each.lower()] for log in logs)
    found = unlike_computed([each for each in lines if each.strip() in ours], of_one)
    if found is None:
        return None
    return warned(
        f"nothing is trained, and rank {rank} prints {found.name} {found.printed}, but one rank that exchanges equally often prints "
        f"{found.alone}: {found.unlike} of {found.evaluations} such numbers differ",
        fix="Find what depends on how the data are divided: a mean of the ranks' means, which weighs parts of unequal size alike, "
        "samples that are left out or counted twice. Exchange sums and counts, and divide afterwards.",
        at=next((each.at for each in case.observed.of(Collective) if each.at), None),
        ranks=(rank,),
    )


def _evaluates_the_same(case: Case) -> bool:
    """Return whether one rank evaluates as many samples as all together: a script may know by itself which rank has which part."""
    ranks = [drawn for rank in case.observed if (drawn := _drawn_to_evaluate(rank))]
    alone = [drawn for rank in case.single or () for drawn in _drawn_to_evaluate(rank)]
    is_whole = all(one == sum(drawn) for one, drawn in zip(alone, zip(*ranks, strict=False), strict=False))
    return is_whole and len(alone) <= min(map(len, ranks), default=0)


def _drawn_to_evaluate(rank: RankObserved) -> list[int]:
    """Return how many samples a rank drew in each epoch without training."""
    return [each.drawn for each in rank.of(EpochProgress) if each.only_read]


def _mean_of_ranks(case: Case) -> Result | None:
    found = next(means_of_ranks(case.observed, case.logs), None)
    if found is None:
        return None
    numbers = ", ".join(f"rank {rank}: {number:.4g}" for rank, number in sorted(found.means.items()))
    return warned(
        f"what is reported is the mean ({found.mean:.4g}) of numbers that each rank computed from its own samples ({numbers}). An AUC, "
        "a macro F1, a correlation or an R² of all samples is not the mean of those of their parts",
        fix="Gather predictions and labels of all ranks, and compute it once from these, or add up the counts that it is made of.",
        at=found.at,
        ranks=sorted(found.means),
    )


def _shortest_batch(observed: Observed) -> float:
    """Return how full the shortest batch of an evaluation is: the mean of its batches' means depends on how samples are divided."""
    sizes = {(each.rank, each.loader): each.batch_size or 1 for each in observed.of(LoaderInfo)}
    ended = [
        (each.drawn, sizes.get((each.rank, each.loader), 1)) for each in observed.of(EpochProgress) if each.only_read
    ]
    return min((drawn % size / size for drawn, size in ended if drawn % size), default=1.0)
