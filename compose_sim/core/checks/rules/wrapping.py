"""Judge whether DistributedDataParallel sees the whole model: its calls, its parameters and its statistics."""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from math import isclose, sqrt
from statistics import fmean, pvariance

from compose_sim.core.checks import (
    DDP_MODEL,
    Case,
    Result,
    check,
    failed,
    names_text,
    not_applicable,
    passed,
    ranks_text,
    report_place,
    warned,
    where,
)
from compose_sim.core.checks.printed_numbers import NUMBER
from compose_sim.core.checks.replica_diff import Difference, compare
from compose_sim.core.checks.rules.copies import evaluations
from compose_sim.core.checks.rules.slopes import FIX_GATHER
from compose_sim.core.checks.sketches import alike, is_known, optimizers
from compose_sim.core.checks.tolerances import MIN_STEPS, ROUNDING_32_BIT
from compose_sim.core.events.observations import RankObserved
from compose_sim.core.text import format_count
from compose_sim.node.records.data import GivenRows, LoaderInfo
from compose_sim.node.records.models import (
    DdpModel,
    LocalBatchNorm,
    OptimizerStep,
    RunningStatistics,
    SpreadTaken,
    SteppedModel,
    UnusedParameters,
    WeightsBeforeSharding,
)
from compose_sim.node.records.process_groups import Collective, DdpForward, UntrackedWait
from compose_sim.node.records.replays import RecordedModels

_HIDES = "ZeroRedundancyOptimizer"
_APART = 0.05  # the variance of the ranks' means, relative to the mean of their variances
_SAME_DATA = 1e-6  # relative, of a sum over all data
_RECENT = 4  # spreads and reductions that may belong together
_AS_PRINTED = 0.005  # a number that is printed is rounded


@check("wrapper-bypassed", "Is the model called through its DDP wrapper?", DDP_MODEL)
def wrapper_bypassed(case: Case) -> Result:
    """Look for steps with gradients for which the wrapper was not called, and after which ranks differ."""
    steps = case.observed.of(OptimizerStep)
    graded = [(step, model) for step in steps for model in step.models if model.graded]
    if not graded:
        return not_applicable("no optimizer stepped a DistributedDataParallel model")
    around = [(step, model) for step, model in graded if not model.forwards]
    beside = [(step, model) for step, model in graded if _is_beside(case, step, model)]
    different: dict[tuple[int, int], Difference] = {}
    for comparison in compare(case.observed):
        for each in comparison.different:
            if each.model is not None and each.nth:
                different.setdefault((comparison.optimizer, each.model), each)
    for step, model in [*around, *beside]:
        difference = different.get((step.optimizer, model.ddp))
        if difference and difference.nth >= step.nth:
            return _went_around(case, step, model, difference)
    if around:
        return passed("gradients that the wrapper did not reduce are nevertheless equal on all ranks")
    return passed("the wrapper was called before every sampled step")


def _is_beside(case: Case, step: OptimizerStep, model: SteppedModel) -> bool:
    """Return whether a separate backward pass went through the model but not the wrapper, which was also called."""
    alone = len(step.models) == 1 and not (
        len({each.optimizer for each in case.observed.of(OptimizerStep)}) > 1
        or any(each.ddp for each in case.observed.of(DdpModel))
    )
    return alone and 0 < model.forwards < step.backwards and not step.retained


def _went_around(case: Case, step: OptimizerStep, model: SteppedModel, difference: Difference) -> Result:
    if model.forwards:
        what = f"{step.backwards} backward passes followed {format_count(model.forwards, 'call')} of the wrapper"
    else:
        what = f"the DistributedDataParallel wrapper was not called, but {model.graded} of its parameters had gradients"
    return failed(
        f"before step {step.nth} {what}: nothing reduced them, and {difference} differs ({difference.who})",
        fix="Call the wrapper: `ddp_model(inputs)`, not `ddp_model.module(inputs)` or the model inside it. If the loss comes from "
        "another method, let forward call that method, so that the wrapper's forward runs before each backward.",
        at=step.at,
        ranks=sorted(case.observed.ranks),
    )


Change = tuple[
    OptimizerStep, SteppedModel, str, Sequence[str]
]  # how parameters came to be in the model, and their names


@check("params-after-wrap", "Are the parameters those that DDP wrapped?", DDP_MODEL)
def params_after_wrap(case: Case) -> Result:
    """Look for parameters that are trained under a DDP model but were not in the model, or not as such, when it was wrapped."""
    if not any(step.models for step in case.observed.of(OptimizerStep)):
        return not_applicable("no optimizer stepped a DistributedDataParallel model")
    changes = list(_changes(case))
    left_out = _left_out(case)
    if left_out:
        return left_out
    if not changes and any(each.ranks and not each.covered for each in case.observed.of(RecordedModels)):
        return not_applicable("the optimizer trains parameters that are in no DistributedDataParallel model")
    if not changes:
        return passed("all trained parameters are those that DistributedDataParallel wrapped")
    comparisons = compare(case.observed)
    different = {(each.model, each.name) for comparison in comparisons for each in comparison.different}
    for step, model, how, names in changes:
        differing = [name for name in names if (model.ddp, name) in different]
        if differing:
            return _changed(case, (step, model, how, differing), f"and {differing[0]} differs between ranks")
    if case.verdict != "passed":
        replaced = next((each for each in changes if each[2] == "replaced"), None)
        if replaced:
            return _changed(case, replaced, "and DistributedDataParallel waits for the old ones")
        return not_applicable("parameters changed after wrapping, but the run ended before ranks could be compared")
    if not any(comparison.samples for comparison in comparisons):
        return not_applicable("parameters changed after wrapping, but there is no later step at which to compare ranks")
    return passed("parameters changed after wrapping, but are equal on all ranks")


def _left_out(case: Case) -> Result | None:
    """Find parameters that an optimizer was not given because it was built before they took the place of others."""
    sampled: dict[int, list[OptimizerStep]] = {}
    for step in case.observed.ranks[0].of(OptimizerStep):
        if step.models:
            sampled.setdefault(step.optimizer, []).append(step)
    for steps in sampled.values():
        names = steps[-1].left_out
        if names and len(steps) >= MIN_STEPS and all(step.left_out == names for step in steps):
            return failed(
                f"no optimizer holds {names_text(names)}, with gradients before each of {len(steps)} steps, and {steps[-1].type} "
                "holds as many parameters that no module has any longer: it was built before a layer was replaced",
                fix="Build the optimizer last: replace layers and wrap the model first, then give `model.parameters()` to the "
                "optimizer.",
                at=steps[-1].at,
            )
    return None


def _changes(case: Case) -> Iterator[Change]:
    for step in case.observed.of(OptimizerStep):
        for model in step.models:
            for how, names in (("added", model.new), ("replaced", model.replaced), ("unfrozen", model.unfrozen)):
                if names:
                    yield step, model, how, names


def _changed(case: Case, change: Change, consequence: str) -> Result:
    step, model, how, names = change
    wrapped = (each.at for each in case.observed.of(DdpModel) if (each.rank, each.ddp) == (step.rank, model.ddp))
    were, gradients = ("were", "their gradients") if len(names) > 1 else ("was", "its gradient")
    return failed(
        f"{names_text(names)} {were} {how} after DistributedDataParallel wrapped the model{where(next(wrapped, None))}: "
        f"nothing reduces {gradients}, {consequence}",
        fix="Build, replace, freeze and unfreeze first, then wrap: `model = DistributedDataParallel(model)` as the last step "
        "before the optimizer. After a later change, wrap the inner model again (`DistributedDataParallel(model.module)`).",
        at=step.at,
        ranks=sorted(case.observed.ranks),
    )


UNFINISHED = "Expected to have finished reduction in the prior iteration"
_INDICES = re.compile(r"did not receive grad for rank (\d+): ((?:[\w.]+,? )*[\w.]+)")
_FIX_UNUSED = (
    "Use all of the model in the loss, or freeze what it does not use (`requires_grad_(False)` before wrapping). If a part is "
    "intentionally left out in some steps: `DistributedDataParallel(model, find_unused_parameters=True)`."
)


@check("unused-params", "Does every parameter under DDP get a gradient?", DDP_MODEL)
def unused_params(case: Case) -> Result:
    """Look for parameters that a whole backward pass left without a gradient, and for DDP's own error."""
    models = {(each.rank, each.ddp): each for each in case.observed.of(DdpModel)}
    unused = list(case.observed.of(UnusedParameters))
    if unused:
        return _explained(_unused(unused), case)
    complaint = _complaint(case)
    if complaint and any(model.replaced for step in case.observed.of(OptimizerStep) for model in step.models):
        return not_applicable("DDP waits for parameters that the model no longer has: see params-after-wrap")
    if complaint:
        return _explained(_waited(_names(complaint, models), case), case)
    if not case.observed.first(DdpForward):
        return not_applicable("no DistributedDataParallel model was called to train")
    if all(each.find_unused or each.static_graph for each in models.values()):
        return passed("DistributedDataParallel looks for unused parameters itself")
    return passed("every parameter that DistributedDataParallel waits for got a gradient")


def _unused(found: list[UnusedParameters]) -> Result:
    first = found[0]
    ranks = sorted({each.rank for each in found})
    return failed(
        f"{first.count} of the parameters that DistributedDataParallel waits for got no gradient from backward on "
        f"{ranks_text(ranks)}: {names_text(first.names, first.count)}",
        fix=_FIX_UNUSED,
        at=first.at,
        ranks=ranks,
    )


def _explained(result: Result, case: Case) -> Result:
    """Name the gather that returns no gradient, if there is one: what only it uses has none."""
    gathered = next((each for each in case.observed.of(Collective) if each.detaches), None)
    if gathered is None:
        return result
    detail = f"{result.detail}; {gathered.op} is given a tensor that requires a gradient, and returns one that has none"
    return replace(result, detail=detail, fix=FIX_GATHER, place=report_place(gathered.at) or result.place)


def _complaint(case: Case) -> str:
    """Return DDP's error when it starts a forward pass while a reduction has not ended; "" if there was none."""
    texts = [case.evidence, *("\n".join(lines) for _, lines in sorted(case.logs.items()))]
    return next((text for text in texts if UNFINISHED in text), "")


def _names(complaint: str, models: dict[tuple[int, int], DdpModel]) -> str:
    """Return the parameters that the error lists; indices become names if there is only one model."""
    found = _INDICES.search(complaint)
    if not found:
        return ""
    listed = found[2].replace(",", "").split()
    names = next(iter(models.values())).names
    if len({index for _, index in models}) == 1 and all(each.isdecimal() and int(each) < len(names) for each in listed):
        listed = [names[int(each)] for each in listed]
    return names_text(listed)


def _waited(names: str, case: Case) -> Result:
    forward = case.observed.last(DdpForward)
    return failed(
        "DistributedDataParallel waited for gradients of parameters that got none in the previous backward pass"
        f"{f': {names}' if names else ''}",
        fix=_FIX_UNUSED,
        at=forward.at if forward else None,
    )


@check("batchnorm-local", "Does BatchNorm normalize by the whole batch?")
def batchnorm_local(case: Case) -> Result:
    """Look for BatchNorm modules in training mode in a DDP model of several ranks."""
    apart = _apart(case) or _own_statistics(case) or _own_scale(case) or _mean_of_spreads(case)
    if apart:
        return apart
    models = {(each.rank, each.ddp): each for each in case.observed.of(DdpModel)}
    if not models:
        return not_applicable("no model was wrapped in DistributedDataParallel")
    shared = {key: each for key, each in models.items() if len(each.ranks) > 1}
    if not shared:
        return not_applicable("every DistributedDataParallel model has only one rank, so its batch is the whole batch")
    found = next((each for each in case.observed.of(LocalBatchNorm) if (each.rank, each.ddp) in shared), None)
    if found is None:
        if not case.observed.first(DdpForward):
            return not_applicable("no DistributedDataParallel model was called to train")
        return passed("no DistributedDataParallel model takes BatchNorm statistics from one rank's batch")
    model = shared[found.rank, found.ddp]
    names = (
        f"BatchNorm {found.names[0]} and {found.count - 1} more normalize"
        if found.count > 1
        else f"BatchNorm {found.names[0]} normalizes"
    )
    return warned(
        f"{names} by the batch of each of the {len(model.ranks)} ranks alone, and only the running statistics of rank "
        f"{model.ranks[0]} are saved",
        fix="Convert the model before wrapping it: `model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)` (GPUs only), or "
        "use GroupNorm or LayerNorm. If each rank has a large batch, it is common to leave BatchNorm as it is.",
        at=model.at,
    )


def _apart(case: Case) -> Result | None:
    """Find running statistics that differ between ranks that evaluate equal weights, outside DistributedDataParallel."""
    for each in evaluations(case.observed):
        parameters, statistics = each.held("parameter"), each.held("buffer")
        names = [name for name, held in statistics[min(statistics)].items() if held]
        different = [name for name in names if len({mine[name] for mine in statistics.values()}) > 1]
        is_equal = all(held == parameters[min(parameters)] for held in parameters.values())
        if each.first.wrapped or not different or not is_equal:
            continue
        return warned(
            f"after step {each.first.steps} {ranks_text(each.by_rank)} evaluate a {each.first.type} with equal weights but different "
            f"running statistics ({names_text(different)}): each rank has only seen its own samples, and predicts something else",
            fix="Average the running statistics over the ranks before evaluation: `dist.all_reduce(buffer)` and divide by the "
            "number of ranks, for each running_mean and running_var; or use GroupNorm or LayerNorm.",
            at=each.first.at,
            ranks=sorted(each.by_rank),
        )
    return None


def _own_statistics(case: Case) -> Result | None:
    """Find statistics of the script's own that differ between ranks which train one model together."""
    kept: dict[tuple[int, str, int], dict[int, RunningStatistics]] = {}
    for each in case.observed.of(RunningStatistics):
        kept.setdefault((each.number, each.type, each.size), {})[each.rank] = each
    together = {frozenset(found.ranks) for each in optimizers(case.observed) for found in each.reductions}
    for by_rank in kept.values():
        ranks = next((group & by_rank.keys() for group in together if len(group & by_rank.keys()) > 1), frozenset())
        means = [by_rank[rank].mean for rank in sorted(ranks)]
        spread = max((max(each) - min(each) for each in zip(*means, strict=False)), default=0.0)
        if spread <= ROUNDING_32_BIT * max((abs(value) for mean in means for value in mean), default=0.0):
            continue
        first = by_rank[min(ranks)]
        shown = ", ".join(f"{by_rank[rank].mean[0]:.3g} on rank {rank}" for rank in sorted(ranks))
        return warned(
            f"{ranks_text(ranks)} train one model, but each keeps a {first.type} of its own samples: its mean begins with {shown} at "
            "the second step, so the same input is another one on each rank, and only the statistics of one are saved",
            fix="Update them with the samples of all ranks: add up the count, the sum and the sum of squares with "
            "`dist.all_reduce` first. If each rank is meant to have its own, as it may for rewards, leave them.",
            at=first.at,
            ranks=sorted(ranks),
        )
    return None


def _own_scale(case: Case) -> Result | None:
    """Find ranks that train one model, each on other data, whose columns have a mean of 0 and a deviation of 1 on each of them."""
    together = {frozenset(found.ranks) for each in optimizers(case.observed) for found in each.reductions}
    first = {rank.rank: next(rank.of(LoaderInfo, GivenRows), None) for rank in case.observed}
    scaled = {rank: each.scaled for rank, each in first.items() if each and each.scaled is not None}
    ranks = next((group for group in together if len(group) > 1 and group <= scaled.keys()), frozenset())
    if not ranks or any(
        isclose(scaled[one], scaled[other], rel_tol=_SAME_DATA) for one, other in combinations(ranks, 2)
    ):
        return None
    example = first[min(ranks)]
    return warned(
        f"{ranks_text(ranks)} train one model, and each has scaled its own part of the data by the mean and the deviation of this "
        "part: a sample is another input on each rank",
        fix="Compute the mean and the deviation of the whole data set before it is divided, or add up counts, sums and sums of squares "
        "over the ranks with `dist.all_reduce`, and scale by these on all ranks. If each rank has a subject or an instrument that is "
        "meant to be scaled by itself: `--skip batchnorm-local`.",
        at=(example.made if isinstance(example, LoaderInfo) else None) or (example.at if example else None),
        ranks=sorted(ranks),
    )


def _mean_of_spreads(case: Case) -> Result | None:
    """Find variances of ranks' own numbers that are averaged over ranks, with the means, although the means are apart."""
    by_rank = [list(_spreads_reduced(rank)) for rank in case.observed]
    printed = _printed(case) if all(by_rank) else []
    for together in zip(*by_rank, strict=False):
        reduced, spreads = [each for each, _ in together], [each for _, each in together]
        if len({each.at for each in reduced}) > 1 or len(reduced[0].group) != case.observed.world_size:
            continue
        within = fmean(each.value**2 if each.is_root else each.value for each in spreads)
        between, center = pvariance(each.mean for each in spreads), fmean(each.mean for each in spreads)
        shown = fmean(each.value for each in spreads)
        if any(_holds(case.observed.ranks[each.rank].of(Collective), (each.mean - center) ** 2) for each in spreads):
            continue  # what the means add is exchanged too
        if between <= _APART * within or any(isclose(each, shown, rel_tol=_AS_PRINTED) for each in printed):
            continue  # a number that is printed is a report, and may be used for nothing else
        low, high = min(spreads, key=lambda each: each.mean), max(spreads, key=lambda each: each.mean)
        kind = "standard deviation" if spreads[0].is_root else "variance"
        right = sqrt(within + between) if spreads[0].is_root else within + between
        return warned(
            f"the ranks average the {kind} of their own numbers, whose means are apart ({low.mean:.3g} on rank {low.rank}, "
            f"{high.mean:.3g} on rank {high.rank}): that is {shown:.3g}, and the {kind} of all numbers is {right:.3g}",
            fix="Add up the count, the sum and the sum of squares over the ranks with `dist.all_reduce`, and compute the mean and the "
            "variance from these. If the number is only reported as a mean over ranks, nothing is wrong.",
            at=reduced[0].at,
        )
    return None


def _spreads_reduced(rank: RankObserved) -> Iterator[tuple[Collective, SpreadTaken]]:
    """Yield what the rank gives to an all_reduce with the spread of some numbers, just after their mean or with it."""
    taken: deque[SpreadTaken] = deque(maxlen=_RECENT)
    given: deque[Collective] = deque(maxlen=_RECENT)
    for each in rank.of(SpreadTaken, Collective):
        if isinstance(each, SpreadTaken):
            taken.append(each)
        elif each.op == "all_reduce" and each.reduce in (None, "SUM", "AVG") and each.values:
            given.append(each)
            for spread in taken:
                is_corrected = _holds(given, spread.mean**2)  # by the variance of the means
                if _holds([each], spread.value) and _holds(given, spread.mean) and not is_corrected:
                    yield each, spread
                    break


def _holds(given: Iterable[Collective], number: float) -> bool:
    return any(isclose(value, number, rel_tol=ROUNDING_32_BIT) for each in given for value in each.values)


def _printed(case: Case) -> list[float]:
    lines = (line for printed in case.logs.values() for line in printed)
    return [float(each) for line in lines for each in NUMBER.findall(line)]


def never_stepped(case: Case) -> Result | None:
    """Find ranks that reduce the gradients of a DDP model and never step, although others do and nothing sends them the weights."""
    steps = {rank.rank: list(rank.of(OptimizerStep)) for rank in case.observed}
    reduced = {rank.rank: sum(1 for _ in rank.of(DdpForward)) for rank in case.observed}
    idle = [rank for rank, mine in steps.items() if not mine and reduced[rank] >= MIN_STEPS]
    first = next((mine[0] for mine in steps.values() if len(mine) >= MIN_STEPS), None)
    operations = ("broadcast", "all_reduce", "scatter")
    sends = any(sum(each.op in operations for each in rank.of(Collective)) >= MIN_STEPS for rank in case.observed)
    if not idle or first is None or case.verdict != "passed" or sends or any(case.observed.of(UntrackedWait)):
        return None
    return failed(
        f"{ranks_text(idle)} reduced gradients {reduced[idle[0]]} times and never stepped, while rank {first.rank} stepped "
        f"{len(steps[first.rank])} times: their weights stay as they were",
        fix="Step on every rank: the reduced gradient is the same on all of them.",
        at=first.at,
        ranks=idle,
    )


def unlike_gradients(case: Case) -> Result | None:
    """Find models in DDP of which ranks used different gradients, which ZeroRedundancyOptimizer hides: it sends one rank's result."""
    for optimizer in optimizers(case.observed):
        steps = [by_rank for by_rank in optimizer.steps.values() if len(by_rank) == case.observed.world_size > 1]
        if any(step.type != _HIDES for by_rank in steps for step in by_rank.values()):
            continue
        rows = [row for row, each in enumerate(optimizer.rows) if each.model is not None]
        different = [
            (by_rank, row)
            for by_rank in steps
            for row in rows
            if all(is_known(step, row) for step in by_rank.values())
            and len(alike({rank: step.used[row] or () for rank, step in by_rank.items()})) > 1
        ]
        count = len({id(by_rank) for by_rank, _ in different})
        if steps and count >= max(MIN_STEPS, len(steps) // 2):
            by_rank, row = different[0]
            return failed(
                f"at {count} of {format_count(len(steps), 'step')} ranks used different gradients, such as that of "
                f"{optimizer.rows[row].name}. {_HIDES} sends the result of the rank that updates a parameter to all, so what "
                "other ranks computed in some backward passes is lost",
                fix="Let DDP reduce in the last backward pass of each step, and only leave the earlier ones in `no_sync()`: it reduces "
                "what they have added up.",
                at=by_rank[min(by_rank)].at,
            )
    return None


def divided_apart(case: Case) -> Result | None:
    """
    Find parameters of which the ranks held other values when `fully_shard` divided them, and that nothing has replaced since.

    If no rank has loaded weights and each holds another part, the model is only drawn from several random generators.
    """
    calls: dict[tuple[tuple[int, ...], int], dict[int, WeightsBeforeSharding]] = {}
    for rank in case.observed:
        seen: Counter[tuple[int, ...]] = Counter()
        for each in rank.of(WeightsBeforeSharding):
            calls.setdefault((each.ranks, seen[each.ranks]), {})[rank.rank] = each
            seen[each.ranks] += 1
    for (ranks, _), by_rank in calls.items():
        held = [dict(zip(each.names, each.hashes, strict=True)) for each in by_rank.values()]
        common = set.intersection(*map(set, held)) if by_rank.keys() == {*ranks} else set()
        matters = any(each.loaded or each.replicated for each in by_rank.values())
        different = [name for name in held[0] if matters and name in common and len({each[name] for each in held}) > 1]
        if different:
            return failed(
                f"{ranks_text(ranks)} held different values of {names_text(different)} when fully_shard divided them: the model is put "
                "together from parts of different tensors",
                fix="Load or initialize the same weights on every rank before fully_shard, which takes them as they are, or after it "
                "with set_model_state_dict(…, options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)).",
                at=by_rank[ranks[0]].at,
                ranks=ranks,
            )
    return None
