"""Find weights that ranks hold beside the replicas: averages of some ranks, experts made equal, what FSDP leaves out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from compose_sim.core.checks import Case, Result, failed, warned
from compose_sim.core.checks.evidence.evaluated import evaluations, initial_weights
from compose_sim.core.checks.evidence.replica_diff import Difference, step_at
from compose_sim.core.checks.wording import names_text, ranks_text
from compose_sim.core.events.observations import Observed
from compose_sim.core.units import format_count
from compose_sim.node.records.models import DdpModel, WeightsBeforeWrapping
from compose_sim.node.records.process_groups import Collective
from compose_sim.node.records.replays import RecordedModels

_LEAST = 3  # exchanges of samples between experts


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
            "`DistributedDataParallel._set_params_and_buffers_to_ignore_for_model`.",
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
