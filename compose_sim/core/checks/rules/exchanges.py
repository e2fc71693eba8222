"""
Judge what ranks do with their weights between two steps.

Ranks may exchange their weights, as in local SGD: then the weights, or their changes, must be averaged. If all ranks take those of one
rank, the others have learned nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite, prod

from compose_sim.core.checks import CHECKPOINT_ENDINGS, Case, Result, failed, names_text, ranks_text, warned, where
from compose_sim.core.checks.replica_diff import MAX_METRIC, Difference, Key, samples_of
from compose_sim.core.checks.rules.updates import differs
from compose_sim.core.checks.sketches import (
    Optimizer,
    Ranks,
    Vector,
    alike,
    are_equal,
    dot,
    factor,
    joined,
    mean,
    norm,
    optimizers,
    weights,
)
from compose_sim.core.checks.tolerances import MIN_STEPS, ROUNDING_16_BIT, ROUNDING_COMBINATION
from compose_sim.core.events.observations import Observed, RankObserved
from compose_sim.core.text import format_count
from compose_sim.node.records.devices_and_files import FileUse
from compose_sim.node.records.gradients import Sketch, SketchedStep
from compose_sim.node.records.models import DdpModel, EvaluatedModel, OptimizerStep, TensorHashes
from compose_sim.node.records.process_groups import Collective, LaterCollectives, UntrackedWait
from compose_sim.node.records.timings import StepTimes

_MIN_EXCHANGES = 2  # exchanges
_PARALLEL, _LEAST_SHARE = 0.9, 0.75  # of a round's weights and those trained before: the cosine, and the ratio
# Of what a round begins with and what it trains: the least squared sine, or else how far their lengths may differ
_APART, _AS_LONG = 0.02, 0.3
_MAX_OPTIMIZERS = 64
_MAX_MOMENTUM = 2.0  # times the mean change: above what outer momentum makes of it


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """Some ranks held different weights, and the same before their next step."""

    step: SketchedStep  # the first after it
    ranks: Ranks
    is_of_all: bool  # whether no two of them held the same before
    of_weights: float | None  # the new weights, as a multiple of the mean of those before
    # How often the change of the common weights holds the mean of the ranks' changes, besides earlier means
    of_changes: float | None
    taken_from: int | None  # the rank that held the new weights already


def overwritten(case: Case) -> Result | None:
    """Find ranks that step with gradients of their own and then all take the weights of one of them."""
    for optimizer in optimizers(case.observed):
        found = exchanges(optimizer)
        sources = {each.taken_from for each in found}
        if len(found) < _MIN_EXCHANGES or None in sources or len({each.ranks for each in found}) > 1:
            continue
        first, (source, *more) = found[0], sorted(each for each in sources if each is not None)
        if more:
            continue  # the best of several, as in training by populations
        others = [rank for rank in first.ranks if rank != source]
        is_meant = not (optimizer.reductions or any(row.model is not None for row in optimizer.rows))
        return (warned if is_meant else failed)(
            f"after step {first.step.nth - 1} {ranks_text(first.ranks)} held different weights, and before step {first.step.nth} all "
            f"have those of rank {source}, as before {len(found)} of {len(optimizer.steps) - 1} steps: what {ranks_text(others)} "
            "learned is lost",
            fix="Reduce the gradients before each step: wrap the model once, before the training, and call the wrapper in every step. "
            "To average weights, use all_reduce and divide by the number of ranks; broadcast and a new wrapper copy those of one rank.",
            at=first.step.at,
            ranks=others,
        )
    return None


def of_nothing(case: Case, ranks: Sequence[int]) -> Collective | None:
    """Return the first exchange after a step, if all that these ranks give each other from then on are zeros."""
    found: list[Collective] = []
    for rank in (case.observed.ranks[each] for each in ranks):
        begun = rank.first(OptimizerStep)
        given = [
            each
            for each in rank.of(Collective)
            if begun and each.index > begun.index and any(prod(shape) > MAX_METRIC for shape in each.shapes)
        ]
        if len(given) < _MIN_EXCHANGES or any(each.moves != "zeros" for each in given):
            return None
        found.append(given[0])
    return found[0] if found else None


def undone(case: Case) -> Result | None:
    """Find a rank whose updates are gone before its next steps, because it takes weights from ranks that have not made them."""
    for optimizer in optimizers(case.observed):
        for rank in sorted({rank for by_rank in optimizer.steps.values() for rank in by_rank}):
            steps = {nth: by_rank[rank] for nth, by_rank in optimizer.steps.items() if rank in by_rank}
            taken = _taken_from_others(case.observed.ranks[rank], optimizer.index)
            pairs = [(steps[nth], steps[nth + 1]) for nth in sorted(steps) if nth + 1 in steps and nth + 1 in taken]
            rows = [
                row for row in range(len(optimizer.rows)) if pairs and all(_is_undone(*pair, row) for pair in pairs)
            ]
            if rows and len(pairs) >= MIN_STEPS:
                names = [optimizer.rows[row].name for row in rows]
                source = taken[pairs[0][1].nth]
                return failed(
                    f"rank {rank} changes {names_text(names)} in step {pairs[0][0].nth}, and before step {pairs[0][1].nth} has the old "
                    f"values again, as at each of {len(pairs)} steps: the broadcast{where(source.at)} gives it those of rank "
                    f"{source.root}, which has not made this step",
                    fix="Broadcast each parameter from the rank whose optimizer holds it.",
                    at=source.at,
                    ranks=(rank,),
                )
    return None


def _taken_from_others(rank: RankObserved, optimizer: int) -> dict[int, Collective]:
    """Return before which steps this rank was given parameters by a broadcast of another one, and the first of these."""
    found: dict[int, Collective] = {}
    last: Collective | None = None
    for each in rank.of(Collective, OptimizerStep):
        if isinstance(each, OptimizerStep):
            if each.optimizer == optimizer:
                found |= {each.nth: last} if last else {}
                last = None
        elif each.op == "broadcast" and each.moves == "parameter" and each.root != rank.rank:
            last = last or each
    return found


def _is_undone(step: SketchedStep, later: SketchedStep, row: int) -> bool:
    sketches = (step.before, step.after, later.before)
    if any(row >= len(each) or each[row] is None for each in sketches):
        return False
    before, after, now = (each[row] or () for each in sketches)
    return are_equal(now, before) and not are_equal(after, before)


def joined_apart(case: Case, found: Difference) -> Result:
    """Warn of replicas that differ because they left a join with other states of their optimizers."""
    return differs(
        case,
        found,
        ", for the first time after a join in which they took different numbers of steps: a join gives all ranks the same weights "
        "at its end, but each keeps its own optimizer state",
        fix="Give each rank the same number of batches, or broadcast the optimizer's state after the join.",
    )


def saved_apart(case: Case) -> Result | None:
    """Find ranks that average their weights now and then, but not after the last steps, of which one rank saves its own."""
    held = {rank.rank: _held_at_last(rank) for rank in case.observed}
    common = set.intersection(*map(set, held.values()))
    savers = [saved for rank in case.observed if (saved := _saved_at_end(rank))]
    if len(savers) != 1 or not common or any(len({held[rank][key] for rank in held}) == 1 for key in common):
        return None
    if not all(map(_evaluates_its_own, case.observed)):
        return None  # what is saved may be another model, or no model
    return warned(
        f"rank {savers[0].rank} saves {savers[0].path} after the last step{where(savers[0].at)}, but all "
        f"{format_count(len(common), 'parameter')} differed between ranks after step {min(common)[0]}, and no weights were exchanged "
        "from then on: ranks average their weights now and then, but not those of the last steps",
        fix="Average the weights once more after the last step, before they are saved or evaluated.",
        at=savers[0].at,
        ranks=sorted(held),
    )


def _evaluates_its_own(rank: RankObserved) -> bool:
    """Return whether a rank evaluates a model that it trains after its last step."""
    steps = sum(1 for _ in rank.of(OptimizerStep))
    return any(each.held or each.wrapped for each in rank.of(EvaluatedModel) if each.steps == steps)


def _held_at_last(rank: RankObserved) -> dict[tuple[int, Key], str | None]:
    """Return the hashes of the parameters, with the step, after which the rank exchanged no more weights; none if it did."""
    sampled = [(nth, values) for nth, values in samples_of(rank, by_join=False).values() if nth]
    last = rank.last(TensorHashes)
    if not sampled or not last or rank.first(LaterCollectives) or rank.first(UntrackedWait):
        return {}
    nth, values = sampled[-1]
    held = {(nth, key): each for key, each in values.items() if key[0] == "parameter"}
    given = {shape for each in rank.of(Collective) if each.index > last.index for shape in each.shapes}
    is_whole = any(prod(shape) > MAX_METRIC for shape in given)
    return {} if is_whole or given & {each[0] for each in held.values()} else {key: held[key][-1] for key in held}


def _saved_at_end(rank: RankObserved) -> FileUse | None:
    """Return the checkpoint that a rank wrote after its last step, if it read none then."""
    steps = [each.index for each in rank.of(OptimizerStep)]
    later = [each for each in rank.of(FileUse) if steps and each.index > steps[-1]]
    uses = [each for each in later if each.path.endswith(CHECKPOINT_ENDINGS)]
    saved = next((each for each in uses if each.makes), None)
    return None if any(each.op == "read" for each in uses) else saved


def added_weights(optimizer: Optimizer) -> Result | None:
    """Find ranks whose common weights are the sum of theirs, or move by far more than the mean of their changes."""
    found = [each for each in exchanges(optimizer) if each.is_of_all]
    if not found:
        return None
    first = found[0]
    who, count = ranks_text(first.ranks), len(first.ranks)
    if all(each.of_weights is not None and abs(each.of_weights - count) < ROUNDING_16_BIT * count for each in found):
        return failed(
            f"before step {first.step.nth} {who} replaced their weights by the sum of them, {count} times the mean",
            fix="Divide by the number of ranks after the sum, before the weights are used.",
            at=first.step.at,
            ranks=first.ranks,
        )
    least = max(_MAX_MOMENTUM, count / 2)
    moved = [each.of_changes for each in found if each.of_changes is not None]
    are_sums = all(abs(each - count) < ROUNDING_COMBINATION * count for each in moved)
    if _MIN_EXCHANGES <= len(found) == len(moved) and (are_sums or min(moved) > least):
        return warned(
            f"before step {first.step.nth} {who} moved their common weights by {first.of_changes:.3g} times the mean of their "
            f"changes, and as far at each of {format_count(len(found), 'exchange')}: the changes are added, not averaged",
            fix="Divide the sum of the changes by the number of ranks before it is added to the common weights.",
            at=first.step.at,
            ranks=first.ranks,
        )
    return None


def exchanges(optimizer: Optimizer) -> list[Exchange]:
    """Return after which steps ranks that had come apart were given the same weights."""
    rows = range(len(optimizer.rows))
    found: list[Exchange] = []
    common: dict[Ranks, Vector] = {}  # what these ranks held alike, the last of them at the end
    changes: dict[Ranks, list[Vector]] = {}  # the mean of the ranks' changes, for each exchange
    for nth, earlier in sorted(optimizer.steps.items()):
        later = optimizer.steps.get(nth + 1, {})
        # An optimizer may get more parameters later.
        known = [
            rank
            for rank in sorted(earlier.keys() & later.keys())
            if all(_is_whole(each, rows) for each in (earlier[rank].before, earlier[rank].after, later[rank].before))
        ]
        before = {rank: joined(earlier[rank].before, rows) for rank in known}
        for ranks in alike(before):
            common.pop(ranks, None)
            common[ranks] = before[ranks[0]]
        for ranks in alike({rank: joined(later[rank].before, rows) for rank in known}):
            then = {rank: joined(earlier[rank].after, rows) for rank in ranks}
            apart = len(alike(then))
            if apart == 1:
                continue
            average, new = mean(list(then.values())), joined(later[ranks[0]].before, rows)
            was = next((held for group, held in reversed(common.items()) if {*ranks} <= {*group}), None)
            earlier_changes = changes.setdefault(ranks, [])
            earlier_changes += [_minus(average, was)] if was is not None else []
            found.append(
                Exchange(
                    step=later[ranks[0]],
                    ranks=ranks,
                    is_of_all=apart == len(ranks),
                    of_weights=factor(new, average),
                    of_changes=_times_changed(_minus(new, was), earlier_changes) if was is not None else None,
                    taken_from=next((rank for rank in ranks if are_equal(then[rank], new)), None),
                )
            )
    return found


def wrong_shares(case: Case) -> Result | None:
    """
    Find rounds of local training that all begin with a multiple of what the round before has trained, as federated clients do.

    A round begins with a × the last beginning + b × the mean of what was trained from that, for any shares and any rate of the server:
    a + b is 1. It is also 1 with momentum, unless the beginnings are about zero.
    """
    trained: list[tuple[SketchedStep, Vector, Vector]] = []  # the first step, and the weights before it and at the end
    for each in optimizers(case.observed)[:_MAX_OPTIMIZERS]:
        rows = range(len(each.rows))
        for rank, step in each.steps.get(1, {}).items():
            end = next(by_rank[rank] for _, by_rank in sorted(each.steps.items(), reverse=True) if rank in by_rank)
            if not (_is_whole(step.before, rows) and _is_whole(end.after, rows)):
                return None
            trained.append((step, joined(step.before, rows), joined(end.after, rows)))
    rounds: list[tuple[Vector, list[Vector]]] = []
    first: SketchedStep | None = None
    for step, begun, ended in sorted(trained, key=lambda each: each[0].t):  # ranks may leave out rounds
        known = next((each for start, each in rounds if are_equal(start, begun)), None)
        if known is None:
            rounds.append((begun, known := []))
            first = first or (step if len(rounds) > 1 else None)
        known.append(ended)
    if first is None or len({len(start) for start, _ in rounds}) > 1:
        return None
    found = [_share(new, begun, trained) for (begun, trained), (new, _) in pairwise(rounds)]
    shares = [each for each in found if each is not None]
    are_known = len(shares) >= max(MIN_STEPS, len(found) / 2)
    if not are_known or (min(shares) <= 1 / _LEAST_SHARE and max(shares) >= _LEAST_SHARE):
        return None
    return warned(
        f"each of {len(shares)} rounds of training begins with shares of the weights of the round before, as it began and as it was "
        f"trained, that add up to {min(shares):.2g} to {max(shares):.2g}, not to 1",
        fix="Divide what each rank or client gives by the sum over those that take part in this round, and not over all of them.",
        at=first.at,
    )


def _share(new: Vector, begun: Vector, trained: Sequence[Vector]) -> float | None:
    """Return a + b if new = a × begun + b × the mean of what was trained; None if it is something else, or that cannot be told."""
    average = mean(trained)
    is_parallel = dot(new, average) >= _PARALLEL * norm(new) * norm(average)
    if not is_parallel or all(are_equal(trained[0], each) for each in trained):
        return None
    across, square, other = dot(begun, average), dot(begun, begun), dot(average, average)
    apart = square * other - across**2
    if apart > _APART * square * other:
        own = (dot(new, begun) * other - dot(new, average) * across) / apart
        return own + (dot(new, average) * square - dot(new, begun) * across) / apart
    # Nearly parallel, and so only their sum is known, if they are also about as long.
    return dot(new, average) / other if abs(across / other - 1) < _AS_LONG else None


def never_equal(case: Case) -> Result | None:
    """Find weights that ranks begin with alike, and change again and again by what they exchange, but never make equal."""
    everybody = case.observed.world_size
    for optimizer in optimizers(case.observed):
        rows = range(len(optimizer.rows))
        begun = {rank: joined(each.before, rows) for rank, each in optimizer.steps.get(1, {}).items()}
        if len(begun) < everybody or len(alike(begun)) > 1:
            continue
        changed = [
            (later[min(later)], new)
            for nth in sorted(optimizer.steps)
            if (later := optimizer.steps.get(nth + 1)) and (new := _changed(optimizer.steps[nth], later, rows))
        ]
        if changed and all(len(alike(new)) == everybody for _, new in changed):
            times, step = format_count(len(changed), "time"), changed[0][0]
            return warned(
                f"ranks begin with the same weights; what they exchange changes these, first before step {step.nth} ({times} in the "
                "steps looked at), but each rank has weights of its own afterwards",
                fix="Compute all that changes the weights, such as an outer momentum, from averaged tensors. If each rank is meant to "
                "have weights of its own, as in elastic averaging: `--skip params-in-sync`.",
                at=step.at,
            )
    return None


def _changed(
    earlier: Mapping[int, SketchedStep], later: Mapping[int, SketchedStep], rows: Sequence[int]
) -> dict[int, Vector]:
    """Return the weights that ranks begin a step with; none if one has its own of before, or all have means of what ranks had."""
    if earlier.keys() != later.keys() or not all(_is_whole(each.before, rows) for each in later.values()):
        return {}
    old = {rank: joined(each.after, rows) for rank, each in earlier.items()}
    new = {rank: joined(each.before, rows) for rank, each in later.items()}
    is_gossip = all(min(weights(held, [*old.values()]), default=-1.0) > -ROUNDING_COMBINATION for held in new.values())
    return {} if is_gossip or any(are_equal(old[rank], held) for rank, held in new.items()) else new


def _is_whole(sketches: Sequence[Sketch], rows: Sequence[int]) -> bool:
    """Return whether all parameters were sketched, and are finite."""
    return len(sketches) == len(rows) and all(each is not None and all(map(isfinite, each)) for each in sketches)


def _times_changed(moved: Vector, changes: Sequence[Vector]) -> float | None:
    """Return how often a change holds the last of the mean changes: by itself, or with momentum, which holds the earlier ones too."""
    alone = factor(moved, changes[-1])
    if alone is not None:
        return alone
    found = weights(moved, changes)
    return found[-1] / len(found) if found else None


def _minus(one: Vector, other: Vector) -> Vector:
    return [left - right for left, right in zip(one, other, strict=True)]


def islands(case: Case) -> Result | None:
    """Find groups of ranks that begin with the same weights, and never exchange any with the other groups."""
    observed = case.observed
    groups = _connected(observed)
    exchanged = [
        {*each.group}
        for each in observed.of(Collective)
        if "object" in each.op or any(prod(shape) > MAX_METRIC for shape in each.shapes)
    ]
    together = [*exchanged, *({*each.ranks} for each in observed.of(DdpModel))]
    crosses = any(len([group for group in groups if group & ranks]) > 1 for ranks in together)
    if crosses or len(groups) < 2 or any(len(group) < 2 for group in groups):
        return None
    for optimizer in optimizers(observed):
        first, rows = optimizer.steps.get(1, {}), range(len(optimizer.rows))
        begun = {rank: joined(step.before, rows) for rank, step in first.items() if _is_whole(step.before, rows)}
        if len(begun) == observed.world_size and len(alike(begun)) == 1:
            listed = " and ".join(ranks_text(sorted(group)) for group in groups)
            return warned(
                f"all ranks begin with the same weights, and send messages only within {listed}, which never exchange weights: each "
                "group trains a model of its own",
                fix="Print the partner of each rank at each exchange: over a few of them, messages must connect all ranks. If each "
                "group is meant to have a model of its own: `--skip params-in-sync`.",
                at=first[min(first)].at,
            )
    return None


def _connected(observed: Observed) -> list[set[int]]:
    """Return the groups of ranks that messages connect, directly or through others."""
    groups = [{rank.rank} for rank in observed]
    for pair in {wait.group for times in observed.of(StepTimes) for wait in times.waits if ">" in wait.group}:
        ends = {*map(int, pair.split(">"))}
        met = [group for group in groups if group & ends]
        groups = [group for group in groups if group not in met] + [set().union(*met)]
    return sorted(groups, key=min)


def in_parts(observed: Observed) -> tuple[str, str] | None:
    """Return why copies of a parameter differ if ranks compute parts of one loss: large tensors are exchanged in each forward pass."""
    steps = [each.in_forward > 0 for each in observed.of(SketchedStep)]
    large = [each for each in observed.ranks[0].of(Collective) if each.shapes and not each.values and not each.moves]
    if 2 * sum(steps) <= len(steps) or len(large) < MIN_STEPS or 2 * len(large) * len(observed.ranks) < len(steps):
        return None
    [((op, at), _)] = Counter((each.op, each.at) for each in large).most_common(1)  # others may be outside the steps
    return (
        f"ranks compute each loss together, with {op}{where(at)} in forward, and each steps with its own gradient",
        "Where a tensor that all ranks hold enters a part of a layer, backward gives each rank a part of its gradient: all-reduce that "
        "gradient there, in the backward of an autograd function, or all-reduce the gradients of parameters that all ranks hold.",
    )
