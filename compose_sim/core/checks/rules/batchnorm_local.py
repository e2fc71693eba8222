"""Judge whether BatchNorm computes statistics over the whole batch."""

from __future__ import annotations

from compose_sim.core.checks import Case, Result, not_applicable, passed, warned
from compose_sim.core.checks.evidence.evaluated import evaluations
from compose_sim.core.checks.evidence.gradient_sums import optimizers
from compose_sim.core.checks.wording import names_text, ranks_text
from compose_sim.node.records.models import DdpModel, LocalBatchNorm, RunningStatistics
from compose_sim.node.records.process_groups import DdpForward

QUESTION = "Does BatchNorm normalize by the whole batch?"

_FIX = (
    "Convert the model before wrapping it: `model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)` (GPUs only), or use "
    "GroupNorm or LayerNorm. If each rank has a large batch, it is common to leave BatchNorm as it is."
)
_FIX_APART = (
    "Average the running statistics over the ranks before evaluation: `dist.all_reduce(buffer)` and divide by the number of ranks, for "
    "each running_mean and running_var; or use GroupNorm or LayerNorm."
)
_FIX_OWN = (
    "Update them with the samples of all ranks: add up the count, the sum and the sum of squares with `dist.all_reduce` first. If each "
    "rank is meant to have its own, as it may for rewards, leave them."
)
_NEAR = 1e-5  # relative


def judge(case: Case) -> Result:
    """Look for BatchNorm modules in training mode in a DDP model of several ranks."""
    apart = _apart(case) or _own_statistics(case)
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
        fix=_FIX,
        at=model.at,
    )


def _apart(case: Case) -> Result | None:
    """Find running statistics that differ between ranks that evaluate equal weights, outside DistributedDataParallel."""
    for each in evaluations(case.observed):
        parameters, statistics = each.held("parameter"), each.held("buffer")
        names = [name for name, held in statistics[min(statistics)].items() if held]
        different = [name for name in names if len({mine[name] for mine in statistics.values()}) > 1]
        if (
            each.first.wrapped
            or not different
            or any(held != parameters[min(parameters)] for held in parameters.values())
        ):
            continue
        return warned(
            f"after step {each.first.steps} {ranks_text(each.by_rank)} evaluate a {each.first.type} with equal weights but different "
            f"running statistics ({names_text(different)}): each rank has only seen its own samples, and predicts something else",
            fix=_FIX_APART,
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
        if spread <= _NEAR * max((abs(value) for mean in means for value in mean), default=0.0):
            continue
        first = by_rank[min(ranks)]
        shown = ", ".join(f"{by_rank[rank].mean[0]:.3g} on rank {rank}" for rank in sorted(ranks))
        return warned(
            f"{ranks_text(ranks)} train one model, but each keeps a {first.type} of its own samples: its mean begins with {shown} at "
            "the second step, so the same input is another one on each rank, and only the statistics of one are saved",
            fix=_FIX_OWN,
            at=first.at,
            ranks=sorted(ranks),
        )
    return None
