"""Say what a run of the checks could not judge: the replicas, the gradients, the samples, or anything at all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from compose_sim.core.checks import NOT_APPLICABLE, Case, Result, chosen
from compose_sim.core.report.report import Coverage
from compose_sim.node.records.process_groups import InitProcessGroup, ProcessGroup

# The checks that compare each of them; the first one gives the reason if none of them could.
COMPARED_BY: Mapping[str, tuple[str, ...]] = {
    "replicas": ("params-in-sync",),
    "gradients": ("gradient-mean", "matches-single", "loss-scale"),
    "samples": ("sampler-overlap",),
}


def coverage(results: Iterable[Result], *, only: tuple[str, ...] = (), skip: tuple[str, ...] = ()) -> Coverage:
    """Return why replicas, gradients and samples were not judged; with `--only`, as far as that was asked for."""
    by_id = {result.id: result for result in results}
    return Coverage(**{subject: _why_not(ids, by_id, only, skip) for subject, ids in COMPARED_BY.items()})


def why_inconclusive(
    case: Case, results: Sequence[Result], found: Coverage, *, only: tuple[str, ...], is_strict: bool
) -> str:
    """Return why nothing may be concluded although nothing failed; "" if something may."""
    if not (case.observed.first(InitProcessGroup) or case.observed.first(ProcessGroup)):
        return "nothing distributed was seen: no rank called torch.distributed.init_process_group"
    for result in results:
        if result.id in only and result.status == NOT_APPLICABLE:
            return f"{result.id} is not applicable: {result.detail}"
    return found.text if is_strict else ""


def _why_not(
    ids: tuple[str, ...], by_id: Mapping[str, Result], only: tuple[str, ...], skip: tuple[str, ...]
) -> str | None:
    if only and not set(ids) & set(only):
        return None
    found = [by_id[name] for name in ids if name in chosen(only, skip) and name in by_id]
    elsewhere = [by_id[result.judged_by] for result in found if result.judged_by in by_id]
    if any(result.status != NOT_APPLICABLE for result in (*found, *elsewhere)):
        return None
    return found[0].detail if found else f"{', '.join(ids)} did not run"
