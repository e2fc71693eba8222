"""Find weights that ranks hold beside the replicas: averages of some ranks, tied weights, experts made equal, what FSDP leaves out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from compose_sim.core.checks import Case, Result, failed, warned
from compose_sim.core.checks.evidence.evaluated import evaluations, initial_weights
from compose_sim.core.checks.evidence.replica_diff import Difference, step_at
from compose_sim.core.checks.wording import names_text, ranks_text
from compose_sim.core.events.observations import Observed, RankObserved
from compose_sim.core.units import format_count
from compose_sim.node.records.models import DdpModel, OptimizerStep, TensorHashes, TensorTable, WeightsBeforeWrapping
from compose_sim.node.records.process_groups import Collective
from compose_sim.node.records.record import Shape
from compose_sim.node.records.replays import RecordedModels

_LEAST = 3  # exchanges of samples between experts
_FIX_TIED = (
    "Add up the gradients of a tied weight over its ranks before each step: `dist.all_reduce(weight.grad, group=…)`."
)


def left_behind(case: Case) -> Result | None:
    """Find a model that all ranks evaluate, but that still has its first weights on some of them."""
    initial = initial_weights(case.observed)
    for each in evaluations(case.observed):
        held = each.held("parameter")
        unmoved = [rank for rank, mine in held.items() if mine and set(mine.values()) <= initial[rank]]
        moved = [rank for rank in held if rank not in unmoved]
        if not unmoved or not moved or len({initial[rank] for rank in held}) > 1:
            continue
        return failed(
            f"after step {each.first.steps} all ranks evaluate a {each.first.type} that only {ranks_text(moved)} updated; "
            f"on {ranks_text(unmoved)} it still has the weights of the start",
            fix="Update the average on every rank, not under `if rank == 0:`: the weights that it averages are the same on all ranks.",
            at=each.first.at,
            ranks=unmoved,
        )
    return None


def untied(case: Case) -> Result | None:
    """Find a weight that stages of a pipeline were given as the same, and that differs between them after their first steps."""
    held = {rank.rank: _parameters(rank) for rank in case.observed}
    for shared in _shared_before_training(case.observed):
        stages = [held.get(rank, {}) for rank in shared.group]
        together = sorted(set.intersection(*(set(stage) for stage in stages)))
        if len(together) < 2 or together[0] or len({frozenset(stage[0].keys()) for stage in stages}) < len(stages):
            continue  # ranks with the same parameters are replicas, which are compared elsewhere
        begun = [
            {hashed: name for (name, shape), hashed in stage[0].items() if shape in shared.shapes} for stage in stages
        ]
        names = [[each[same] for each in begun] for same in set.intersection(*(set(each) for each in begun))]
        for mine in names:
            later = [
                {stage[nth].get((name, shared.shapes[0])) for stage, name in zip(stages, mine, strict=True)}
                for nth in together[1:]
            ]
            if all(len(each) > 1 for each in later):
                owners = ", ".join(f"{name} on rank {rank}" for rank, name in zip(shared.group, mine, strict=True))
                return warned(
                    f"{shared.op} gave {ranks_text(shared.group)} the same weight ({owners}), which differs between them after each "
                    f"of {len(later)} sampled steps: if it is tied, as an embedding and the output of a pipeline are, each "
                    "stage trains a copy with a part of the gradient",
                    fix=_FIX_TIED,
                    at=shared.at,
                    ranks=shared.group,
                )
    return None


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
            if each.op in ("broadcast", "all_reduce") and len(each.shapes) == 1 and min(each.group) == rank.rank:
                yield each


def overwritten_experts(case: Case) -> Result | None:
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
    often = {which for which, count in exchanges.items() if count >= _LEAST}
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
    step = step_at(case.observed, found)
    return failed(
        f"after step {found.nth} {found} differs between ranks ({found.who}): FSDP does not shard it, and does not reduce its gradient",
        fix="Let FSDP manage it (leave it out of `ignored_params` and `ignored_modules`), or all-reduce its gradient and "
        "divide it by the number of ranks before each step.",
        at=step.at if step else None,
        ranks=sorted(rank for agreeing in found.agreeing for rank in agreeing),
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
