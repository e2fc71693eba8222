"""Judge whether gradients are clipped once they are complete, unscaled, and by the norm of all of them."""

from __future__ import annotations

from math import log2

from compose_sim.core.checks import Case, Result, failed, not_applicable, passed, warned
from compose_sim.core.checks.evidence.gradient_sums import optimizers, scaled_apart
from compose_sim.core.checks.source.hints import NORM_OF_SHARDS, find_hints
from compose_sim.core.units import format_count
from compose_sim.node.records.precautions import Clip, ShardScaling
from compose_sim.node.records.process_groups import Collective
from compose_sim.node.records.record import Place

QUESTION = "Are gradients clipped by their whole norm, after they are unscaled?"

_LEAST = 3  # steps that must show the same
_SPREAD = 1.01
_APART = 1.001  # the norms of parts may differ little
_EXACTLY = 1e-4
_FIX_WHOLE = (
    "Clip by the norm over all ranks: with FSDP2 `torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)`, with "
    "FullyShardedDataParallel `model.clip_grad_norm_(max_norm)`."
)
_OWN_NORM = (
    "clips by a norm that also counts gradients of its own",
    "Clip by a norm that is equal on all ranks: add up over the ranks the squares of what only one rank holds, such as an expert or a "
    "shard, then call torch.nn.utils.clip_grads_with_norm_.",
)
_OWN_SCALE = (
    "divides by a loss scale of its own",
    "Give all ranks the same loss scale: reduce whether a gradient is infinite (`op=dist.ReduceOp.MAX`) before the scale changes.",
)


def judge(case: Case) -> Result:
    """Look at what clipping saw, and at how each rank changed its shards between backward and the step."""
    clips = list(case.observed.of(Clip))
    problem = _scaled(clips) or _local_norm(case) or _scaled_apart(case)
    if problem:
        return problem
    noted = _noted_norm(case)
    if noted:
        return noted
    if clips:
        return passed(f"{format_count(len(clips), 'call')} of clip_grad_norm_ saw whole, unscaled gradients")
    if any(abs(each.factor - 1) > _EXACTLY for each in case.observed.of(ShardScaling)):
        return not_applicable(
            "gradients were scaled without clip_grad_norm_, on all ranks alike, by a norm that was not seen"
        )
    return not_applicable("no gradient was seen to be clipped")


def _scaled(clips: list[Clip]) -> Result | None:
    scaled = [each for each in clips if each.scale != 1.0]
    if not scaled:
        return None
    first = scaled[0]
    return failed(
        f"clip_grad_norm_ compares {first.limit:g} with gradients that GradScaler has multiplied by {first.scale:g} (it saw a norm of "
        f"{first.norm:.3g}), and they are divided only afterwards: their norm is then at most {first.limit / first.scale:.2g}",
        fix="Call `scaler.unscale_(optimizer)` before `clip_grad_norm_`.",
        at=first.at,
    )


def _local_norm(case: Case) -> Result | None:
    """Find steps before which ranks multiplied their shards of the same parameters by different factors."""
    factors: dict[tuple[int, int, tuple[int, ...]], dict[int, float]] = {}
    at: Place | None = None
    for each in case.observed.of(ShardScaling):
        ranks = each.ranks or tuple(sorted(case.observed.ranks))
        factors.setdefault((each.optimizer, each.nth, ranks), {})[each.rank] = each.factor
        at = at or each.at
    different = [
        by_rank
        for by_rank in factors.values()
        if len(by_rank) > 1 and min(by_rank.values()) > 0 and max(by_rank.values()) > _SPREAD * min(by_rank.values())
    ]
    if len(different) < _LEAST:
        return None
    shown = ", ".join(f"rank {rank}: {factor:.3g}" for rank, factor in sorted(different[0].items()))
    return failed(
        f"at {len(different)} of {len(factors)} steps each rank multiplied its shards of the gradients by another factor ({shown}): it "
        "clips by the norm of its own shards, which changes the direction of the gradient",
        fix=_FIX_WHOLE,
        at=at,
        ranks=sorted(different[0]),
    )


def _noted_norm(case: Case) -> Result | None:
    """Find a function that would clip shards by the rank's own norm, although no norm reached the limit in the steps seen."""
    noted = next((hint for hint in find_hints(case.sources) if hint.text.endswith(NORM_OF_SHARDS)), None)
    shards = list(case.observed.of(ShardScaling))
    exchanged = max((sum(not each.by_fsdp for each in rank.of(Collective)) for rank in case.observed), default=0)
    if noted is None or not shards or exchanged >= max(each.nth for each in shards):
        return None  # a norm that ranks exchange takes a collective for each step
    return warned(
        f"{noted.text}: each rank will multiply by another factor once its norm exceeds the limit, which was not seen",
        fix=_FIX_WHOLE,
        at=(noted.place.file, noted.place.line or 1),
    )


def _scaled_apart(case: Case) -> Result | None:
    """Find steps in which each rank multiplied the mean of the same gradients by another factor."""
    for optimizer in optimizers(case.observed):
        found = list(scaled_apart(optimizer))
        different = [
            (step, by_rank) for step, by_rank in found if max(by_rank.values()) > _APART * min(by_rank.values())
        ]
        if len(different) < _LEAST or 2 * len(different) < len(found):
            continue
        step, by_rank = different[0]
        shown = ", ".join(f"rank {rank}: {factor:.3g}" for rank, factor in sorted(by_rank.items()))
        # Loss scales are doubled and halved.
        has_scales = all(abs(log2(factor) - round(log2(factor))) < _EXACTLY for factor in by_rank.values())
        why, fix = _OWN_SCALE if has_scales else _OWN_NORM
        return failed(
            f"at {len(different)} of {len(optimizer.steps)} steps each rank multiplied the mean gradient by another factor "
            f"({shown}), as if it {why}: the copies of a parameter drift apart",
            fix=fix,
            at=step.at,
            ranks=sorted(by_rank),
        )
    return None
