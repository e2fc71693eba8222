"""
Judge the copies that ranks hold beside the replicas.

They are the copies beside the parts of a tensor-parallel model, averages of weights, tied weights, experts, and what FSDP leaves out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import isfinite

from compose_sim.core.checks import (
    Case,
    Result,
    check,
    failed,
    names_text,
    not_applicable,
    passed,
    ranks_text,
    shape_text,
    warned,
    where,
)
from compose_sim.core.checks.drifting_copies import DriftingCopy, drifting_copy, unreduced_copies
from compose_sim.core.checks.repeated_steps import step_place
from compose_sim.core.checks.replica_diff import Difference
from compose_sim.core.checks.rules.updates import differs
from compose_sim.core.checks.sketches import Ranks, distance, norm, optimizers, parameter_names
from compose_sim.core.checks.tolerances import MIN_STEPS, ROUNDING_COMBINATION
from compose_sim.core.events.observations import Observed, RankObserved
from compose_sim.core.text import format_count
from compose_sim.node.records.models import (
    DdpModel,
    EvaluatedModel,
    OptimizerStep,
    SentModel,
    TensorHashes,
    TensorTable,
    WeightsBeforeWrapping,
)
from compose_sim.node.records.precautions import ReplicatedTensor
from compose_sim.node.records.process_groups import Collective
from compose_sim.node.records.record import Place, Shape
from compose_sim.node.records.replays import RecordedModels


@check(
    "replicated-tensors",
    "Do ranks of a mesh hold equal values of what they declare replicated?",
    may_follow=("gradient-clipping",),
)
def replicated_tensors(case: Case) -> Result:
    """Compare the tensors that DTensor.from_local was given as replicated, call by call; and copies beside parts held by hand."""
    calls: dict[tuple[tuple[int, ...], int], dict[int, ReplicatedTensor]] = {}
    for each in case.observed.of(ReplicatedTensor):
        calls.setdefault((each.ranks, each.number), {})[each.rank] = each
    compared = [
        by_rank
        for by_rank in calls.values()
        if len(by_rank) > 1 and len({each.shape for each in by_rank.values()}) == 1 and _first(by_rank).is_input
    ]
    drifting = drifting_copy(case.observed)
    if drifting:
        return _drifted(drifting)
    if not compared:
        return not_applicable("no tensor was declared replicated over a device mesh")
    different = [by_rank for by_rank in compared if not _are_replicas(by_rank)]
    if different and different[0] is compared[0] and 2 * len(different) > len(compared):
        first = _first(different[0])
        return failed(
            f"{ranks_text(first.ranks)} are one tensor-parallel group, but {len(different)} of {len(compared)} inputs that they "
            f"declare replicated differ, from the first one ({shape_text(first.shape)}): they are fed different samples",
            fix="Feed all ranks of a tensor-parallel group the same samples: give the sampler the data-parallel rank and size "
            '(`num_replicas=mesh["dp"].size(), rank=mesh["dp"].get_local_rank()`), not the global ones.',
            at=first.at,
            ranks=first.ranks,
        )
    if different:
        first = _first(different[0])
        return warned(
            f"{len(different)} of {len(compared)} inputs that {ranks_text(first.ranks)} declare replicated differ, the first in call "
            f"{first.number} ({shape_text(first.shape)})",
            fix="Compute what is declared replicated from the same samples and random numbers on all ranks of the group.",
            at=first.at,
            ranks=first.ranks,
        )
    return passed(
        f"{len(compared)} of {format_count(len(calls), 'tensor')} declared replicated compared: equal on all ranks of their mesh"
    )


def _are_replicas(by_rank: Mapping[int, ReplicatedTensor]) -> bool:
    """Return whether a tensor is the same on all ranks, bit for bit or up to rounding, which kernels of GPUs may differ by."""
    if len({each.hash for each in by_rank.values()}) == 1:
        return True
    sums = [each.sums for each in by_rank.values() if each.sums and all(map(isfinite, each.sums))]
    if len(sums) < len(by_rank):
        return False
    return all(distance(sums[0], each) <= ROUNDING_COMBINATION * norm(each) for each in sums)


def _first(by_rank: dict[int, ReplicatedTensor]) -> ReplicatedTensor:
    return by_rank[min(by_rank)]


def _drifted(found: DriftingCopy) -> Result:
    size = shape_text(found.copy.shape)
    parts = f"{ranks_text(found.ranks)} hold different parts of the model, such as parameter {found.part.name}, and add up activations"
    if found.steady:
        return failed(
            f"{parts} in every step{where(found.at)}. Parameter {found.steady.name} gets the same gradient on all of them, but "
            f"parameter {found.copy.name} ({size}), which began equal as well, drifts apart: each rank has only the gradient that "
            "came through its own part",
            fix="Add up over the ranks the gradient of the input of a layer that is divided by its outputs: an autograd.Function that "
            "returns its input, with an all_reduce in `backward`. Or add up the gradients of the weights before that layer.",
            at=found.at,
            ranks=found.ranks,
        )
    return failed(
        f"{parts} in every step{where(found.at)}, but parameter {found.copy.name} ({size}), which began equal on all of them, drifts "
        "apart: they are fed different samples, or do not add up its gradient",
        fix="Feed all ranks of a tensor-parallel group the same samples: divide the data among the groups, not among their ranks. "
        "If ranks work on parts of a sequence, add up the gradients of what they all hold.",
        at=found.at,
        ranks=found.ranks,
    )


_MIN_EXCHANGES = 3  # exchanges of samples between experts


def copies_lost(case: Case) -> Result | None:
    """Find a copy that is overwritten with that of another rank, or of which a part is never sent."""
    return _overwritten_experts(case) or _never_sent(case)


def copies_apart(case: Case) -> Result | None:
    """Find a copy that comes apart from those of other ranks."""
    return _left_behind(case) or _untied(case) or _unreduced(case)


def _left_behind(case: Case) -> Result | None:
    """Find a model that all ranks evaluate, but that still has its first weights on some of them."""
    initial, found = initial_weights(case.observed), list(evaluations(case.observed))
    for each in found:
        held = each.held("parameter")
        unmoved = [rank for rank, mine in held.items() if mine and set(mine.values()) <= initial[rank]]
        moved = [rank for rank in held if rank not in unmoved]
        if not unmoved or not moved or len({initial[rank] for rank in held}) > 1:
            continue
        if _stays_the_same(each, moved, found):  # it was made with other weights, not updated
            continue
        return failed(
            f"after step {each.first.steps} all ranks evaluate a {each.first.type} that only {ranks_text(moved)} updated; "
            f"on {ranks_text(unmoved)} it still has the weights of the start",
            fix="Update the average on every rank, not under `if rank == 0:`: the weights that it averages are the same on all ranks.",
            at=each.first.at,
            ranks=unmoved,
        )
    return None


def _stays_the_same(one: RanksEvaluated, ranks: Sequence[int], evaluated: Sequence[RanksEvaluated]) -> bool:
    """Return whether these ranks hold the same weights each time that the model is evaluated there, also before the first step."""
    kind = (one.first.type, one.first.at, one.first.rows)
    same = [each for each in evaluated if (each.first.type, each.first.at, each.first.rows) == kind]
    first, *later = [each.held("parameter") for each in same]
    is_early = bool(later) and any(each.first.steps == 0 for each in same)
    return is_early and all(each.get(rank) == first.get(rank) for each in later for rank in ranks)


def helper_apart(case: Case) -> Result | None:
    """Find a model that helps ranks to train another one together, such as a teacher, and that differs between them throughout."""
    together = {tuple(sorted(each.ranks)) for each in case.observed.of(DdpModel)}
    together |= {found.ranks for each in optimizers(case.observed) for found in each.reductions}
    calls: dict[object, list[RanksEvaluated]] = {}
    for each in evaluations(case.observed):
        if not any(one.held or one.wrapped for one in each.by_rank.values()):
            calls.setdefault((each.first.type, each.first.at, each.first.rows), []).append(each)
    for found in calls.values():
        for ranks in sorted(together):
            names = [_different_among(each, ranks) for each in found]
            throughout = set.intersection(*map(set, names)) if len(found) >= MIN_STEPS else set()
            if throughout:
                return _apart(found, [rank for rank in ranks if rank in found[0].by_rank], sorted(throughout))
    return None


def _different_among(found: RanksEvaluated, ranks: Ranks) -> list[str]:
    """Return the names of the parameters of which these ranks have different values."""
    held = [mine for rank, mine in found.held("parameter").items() if rank in ranks]
    common = set.intersection(*map(set, held)) if len(held) > 1 else set()
    return [name for name in common if len({mine[name] for mine in held} - {None}) > 1]


def _apart(found: Sequence[RanksEvaluated], ranks: Sequence[int], names: Sequence[str]) -> Result:
    first = found[0].first
    count = sum(row.kind == "parameter" for row in first.rows)
    is_loaded = any(each.loaded for one in found for each in one.by_rank.values())
    return (warned if is_loaded else failed)(
        f"{ranks_text(ranks)} train one model together with the help of a {first.type}{where(first.at)} that no optimizer holds, and "
        f"{len(names)} of its {format_count(count, 'parameter')} ({names_text(names)}) differ between them at each of "
        f"{len(found)} sampled steps: each rank has its own",
        fix="Give all ranks the same: load one checkpoint, seed before it is made with what all ranks share, or broadcast its weights "
        "(`for p in teacher.parameters(): dist.broadcast(p.data, 0)`).",
        at=first.at,
        ranks=ranks,
    )


def _never_sent(case: Case) -> Result | None:
    """Find buffers that change on the rank that sends a model's parameters, and never on those that receive them."""
    sent: dict[str, dict[int, list[SentModel]]] = {}
    for each in case.observed.of(SentModel):
        sent.setdefault(each.type, {}).setdefault(each.rank, []).append(each)
    for kind, by_rank in sent.items():
        sources = [rank for rank, found in by_rank.items() if all(each.is_source for each in found)]
        times = min(map(len, by_rank.values()))
        if len(sources) != 1 or len(by_rank) < 2 or times <= MIN_STEPS:
            continue
        # The first time, a rank may have called its model already, and then receives other parameters.
        values = {
            rank: [dict(zip(each.names, each.hashes, strict=True)) for each in found[1:times]]
            for rank, found in by_rank.items()
        }
        source = values.pop(sources[0])
        names = [
            name
            for name in source[0]
            if len({each.get(name) for each in source}) == len(source)
            and all(len({each.get(name) for each in held}) == 1 for held in values.values())
        ]
        if names:
            return warned(
                f"rank {sources[0]} sends the parameters of its {kind} to {ranks_text(sorted(values))} {times} times. In between, "
                f"{names_text(names)} changed there each time, and never on the others: their model computes something else",
                fix="Send the buffers as well: `for tensor in model.state_dict().values(): dist.broadcast(tensor, src=0)`.",
                at=by_rank[sources[0]][0].at,
                ranks=sorted(values),
            )
    return None


def _unreduced(case: Case) -> Result | None:
    """Find copies beside parts of a model, such as the gate of experts, whose gradients are not reduced, unlike those of others."""
    found = unreduced_copies(case.observed) if case.observed.first(DdpModel) is None else None
    if not found:
        return None
    ranks, copies, count = found
    agreed = parameter_names(case.observed)
    names = names_text(
        [f"{agreed.get(each.name, f'parameter {each.name}')} ({shape_text(each.shape)})" for each in copies]
    )
    return warned(
        f"{ranks_text(ranks)} begin with the same {names}, and reduce the gradients of {format_count(count, 'other parameter')}, but "
        "not of these: each rank trains its own from then on, beside parts that differ from the start",
        fix="Reduce the gradients of all parameters that every rank holds, such as the gate of experts. If each rank is meant to "
        "train its own: `--skip params-in-sync`.",
        at=step_place(case),
        ranks=ranks,
    )


# Ranks, the shapes of what they share, what made it the same, and where.
_Shared = tuple[Sequence[int], Sequence[Shape], str, Place | None]


def _untied(case: Case) -> Result | None:
    """Find a weight that ranks with parts of a model began with as the same, and that differs between them after their first steps."""
    held = {rank.rank: _parameters(rank) for rank in case.observed}
    shared = [(each.group, each.shapes, f"{each.op} gave", each.at) for each in _shared_before_training(case.observed)]
    for ranks, shapes, how, at in (*shared, *_begun_alike(held)):
        stages = [held.get(rank, {}) for rank in ranks]
        together = sorted(set.intersection(*(set(stage) for stage in stages)))
        if len(together) < 2 or together[0] or _has_replicas([stage[0] for stage in stages]):
            continue  # replicas are compared elsewhere
        begun = [{hashed: name for (name, shape), hashed in stage[0].items() if shape in shapes} for stage in stages]
        names = [[each[same] for each in begun] for same in set.intersection(*(set(each) for each in begun))]
        for mine in names:
            later = [
                {stage[nth].get((name, shapes[0])) for stage, name in zip(stages, mine, strict=True)}
                for nth in together[1:]
            ]
            if all(len(each) > 1 for each in later):
                agreed = parameter_names(case.observed)
                names_of_all = [agreed.get(name, name) for name in mine]
                return _came_apart(ranks, names_of_all, how, len(later), at)
    return None


def _came_apart(ranks: Sequence[int], names: Sequence[str], how: str, count: int, at: Place | None) -> Result:
    """Name a weight that ranks had in common: what has one name is a copy beside parts, and what has two is tied."""
    if len(set(names)) == 1 and names[0][:1].isalpha():  # others are numbered, alike in unlike stages
        return warned(
            f"{how} {ranks_text(ranks)} the same {names[0]}, which differs between them after each of {count} sampled steps, beside "
            "parameters that differ from the start: if ranks hold parts of those, each trains its copy with a gradient of its own",
            fix="Add up the gradients of what every rank of the group holds before each step: `dist.all_reduce(weight.grad, "
            "group=…)`. With parallelize_module, declare the layer in the plan, such as `SequenceParallel()` for a norm.",
            at=at,
            ranks=ranks,
        )
    owners = ", ".join(f"{name} on rank {rank}" for rank, name in zip(ranks, names, strict=True))
    return warned(
        f"{how} {ranks_text(ranks)} the same weight ({owners}), which differs between them after each of {count} sampled steps: if it "
        "is tied, as an embedding and the output of a pipeline are, each stage trains a copy with a part of the gradient",
        fix="Add up the gradients of a tied weight over its ranks before each step: `dist.all_reduce(weight.grad, group=…)`.",
        at=at,
        ranks=ranks,
    )


def _begun_alike(held: Mapping[int, Mapping[int, Mapping[tuple[str, Shape], str | None]]]) -> Iterator[_Shared]:
    """
    Yield pairs of ranks that began with one matrix in common, at another place among others that differ.

    One seed also gives stages the same first matrix if they begin alike, which is then at the same place. But it would give both the
    same next matrix too, if that has one shape.
    """
    matrices = {
        rank: {hashed: key for key, hashed in by_step.get(0, {}).items() if len(key[1]) > 1}
        for rank, by_step in held.items()
    }
    for one, other in combinations(sorted(matrices), 2):
        common = set(matrices[one]) & set(matrices[other])
        if len(common) == 1 and min(len(matrices[one]), len(matrices[other])) > 1:
            same = next(iter(common))
            (name, shape), (its_name, _) = (matrices[rank][same] for rank in (one, other))
            its_next, next_of_other = (_shape_after(same, matrices[rank]) for rank in (one, other))
            if name != its_name or (its_next and its_next == next_of_other):
                yield (one, other), (shape,), "one seed gave", None


def _shape_after(hashed: str | None, matrices: Mapping[str | None, tuple[str, Shape]]) -> Shape | None:
    """Return the shape of the matrix that was made after this one; None for the last one."""
    order = [*matrices]
    return next((matrices[each][1] for each in order[order.index(hashed) + 1 :]), None)


def _has_replicas(begun: Sequence[Mapping[tuple[str, Shape], str | None]]) -> bool:
    """Return whether two stages began with equal values of all parameters; those of unlike stages may be numbered alike."""
    return any(dict(one) == dict(other) for one, other in combinations(begun, 2))


def _parameters(rank: RankObserved) -> dict[int, dict[tuple[str, Shape], str | None]]:
    """Return the hash of each parameter that an optimizer of this rank holds, by steps so far."""
    tables = {(each.optimizer, each.table): each.rows for each in rank.of(TensorTable)}
    found: dict[int, dict[tuple[str, Shape], str | None]] = {}
    for each in rank.of(TensorHashes):
        for row, hashed in zip(tables.get((each.optimizer, each.table), ()), each.hashes, strict=False):
            if row.kind == "parameter" and not each.final:
                found.setdefault(each.nth, {})[row.name, row.shape or ()] = hashed
    return found


def _shared_before_training(observed: Observed) -> Iterator[Collective]:
    """Yield what the first rank of each group shares before it steps."""
    for rank in observed:
        for each in rank.of(Collective, OptimizerStep):
            if isinstance(each, OptimizerStep):
                break
            shares = each.op == "broadcast" or (each.op == "all_reduce" and each.moves != "gradient")
            if shares and len(each.shapes) == 1 and min(each.group) == rank.rank:
                yield each


def _overwritten_experts(case: Case) -> Result | None:
    """Find weights that differed between ranks when they were wrapped, although ranks send each other samples for them."""
    groups = _groups_that_exchange(case.observed)
    for model in case.observed.of(DdpModel):
        spanned = next((group for group in groups if len(set(group) & set(model.ranks)) > 1), ())
        different, count = _different(case, model, sorted(set(spanned) & set(model.ranks)))
        if not different:
            continue
        experts = [name for name in different if "expert" in name.lower()]
        if not experts and len(different) == count:
            continue  # no rank was seeded
        named = experts or different
        return (failed if experts else warned)(
            f"{format_count(len(named), 'parameter')} ({names_text(named)}) differed between {ranks_text(spanned)}, which send each "
            "other samples by all_to_all, until DistributedDataParallel gave all ranks those of the first: they are no longer "
            "different experts",
            fix="Keep the experts out of the wrapper: wrap only the other modules, or name them in "
            "`DistributedDataParallel._set_params_and_buffers_to_ignore_for_model`. If each rank's loss is a mean over its samples, "
            "divide the experts' gradients by the number of ranks: each holds the sum over all.",
            at=model.at,
            ranks=spanned,
        )
    return None


def _groups_that_exchange(observed: Observed) -> set[tuple[int, ...]]:
    """Return the groups whose ranks send each other samples: by all_to_all, or by a scatter from each of them, as on gloo."""
    exchanges = Counter(
        (each.rank, each.group, each.root if each.op == "scatter" else None)
        for each in observed.of(Collective)
        if each.op.startswith("all_to_all") or each.op == "scatter"
    )
    often = {which for which, count in exchanges.items() if count >= _MIN_EXCHANGES}
    return {
        group
        for rank, group, root in often
        if root is None or (len(group) > 1 and all((rank, group, each) in often for each in group))
    }


def not_sharded(case: Case, different: Iterable[Difference]) -> Result | None:
    """Report the first of these differences if FSDP alone divides the work: such a parameter is not sharded, and must be equal."""
    found = next(iter(different), None)
    if found is None or not any(each.divided_by_fsdp for each in case.observed.of(RecordedModels)):
        return None
    return differs(
        case,
        found,
        ": FSDP does not shard it, and does not reduce its gradient",
        fix="Let FSDP manage it (leave it out of `ignored_params` and `ignored_modules`), or all-reduce its gradient and "
        "divide it by the number of ranks before each step.",
        is_certain=True,
    )


def _different(case: Case, model: DdpModel, ranks: list[int]) -> tuple[list[str], int]:
    """Return the wrapped parameters whose values differed between these ranks, and the number of parameters."""
    before = [
        each for rank in ranks for each in case.observed.ranks[rank].of(WeightsBeforeWrapping) if each.ddp == model.ddp
    ]
    if len(before) < max(2, len(ranks)) or len({each.rows for each in before}) > 1:
        return [], 0
    rows = [(row.name, position) for position, row in enumerate(before[0].rows) if row.kind == "parameter"]
    wrapped = set(model.names)
    different = [
        name for name, position in rows if name in wrapped and len({each.hashes[position] for each in before}) > 1
    ]
    return different, len(rows)


Held = Mapping[str, str | None]  # the hash of each tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class RanksEvaluated:
    """One model that several ranks evaluated."""

    by_rank: Mapping[int, EvaluatedModel]

    @property
    def first(self) -> EvaluatedModel:
        """The record of the first rank."""
        return self.by_rank[min(self.by_rank)]

    def held(self, kind: str) -> dict[int, Held]:
        """Return the hashes of the tensors of this kind, by rank."""
        return {
            rank: {row.name: hashed for row, hashed in zip(each.rows, each.hashes, strict=False) if row.kind == kind}
            for rank, each in self.by_rank.items()
        }


def evaluations(observed: Observed) -> Iterator[RanksEvaluated]:
    """Yield the models that at least two ranks evaluated after the same step, also several on one line."""
    found: dict[object, dict[int, EvaluatedModel]] = {}
    for rank in observed:
        seen = Counter[object]()
        for each in rank.of(EvaluatedModel):
            kind = each.steps, each.type, each.at, each.rows
            found.setdefault((kind, seen[kind]), {})[rank.rank] = each
            seen[kind] += 1
    yield from (RanksEvaluated(by_rank=by_rank) for by_rank in found.values() if len(by_rank) > 1)


def initial_weights(observed: Observed) -> dict[int, frozenset[str]]:
    """Return the hashes of the parameters that each rank held before its optimizers' first steps."""
    found: dict[int, frozenset[str]] = {}
    for rank in observed:
        kinds = {(each.optimizer, each.table): [row.kind for row in each.rows] for each in rank.of(TensorTable)}
        found[rank.rank] = frozenset(
            hashed
            for each in rank.of(TensorHashes)
            if each.nth == 0
            for kind, hashed in zip(kinds.get((each.optimizer, each.table), ()), each.hashes, strict=False)
            if kind == "parameter" and hashed
        )
    return found
