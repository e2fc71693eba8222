"""Are BatchNorm's statistics those of the whole batch?"""

from __future__ import annotations

from compose_sim.core.checks import Case, Result, not_applicable, passed, warned

QUESTION = "Are BatchNorm's statistics those of the whole batch?"

_FIX = (
    "Convert the model before wrapping it: `model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)` (on GPUs; it does not run "
    "on CPUs); or take GroupNorm or LayerNorm. With large batches on each rank it may stay as it is."
)


def judge(case: Case) -> Result:
    """Look for BatchNorm modules that a DDP model of several ranks had in training mode."""
    models = {(each.rank, each["ddp"]): each for each in case.observed.of("ddp")}
    if not models:
        return not_applicable("no model was wrapped in DistributedDataParallel")
    together = {key: each for key, each in models.items() if len(each["ranks"]) > 1}
    if not together:
        return not_applicable("every DistributedDataParallel model has one rank only: its batch is the whole batch")
    local = [each for each in case.observed.of("batchnorm") if (each.rank, each["ddp"]) in together]
    if not local:
        if not any(each["op"] == "DDP forward" for each in case.observed.of("collective")):
            return not_applicable("no DistributedDataParallel model was called to train")
        return passed("no DistributedDataParallel model took BatchNorm statistics from its own rank's batch")
    first = local[0]
    others = f" and {first['count'] - 1} more" if first["count"] > 1 else ""
    ranks = len(together[first.rank, first["ddp"]]["ranks"])
    file, line = together[first.rank, first["ddp"]]["at"] or (None, None)
    return warned(
        f"{first['names'][0]}{others} normalise by what each of {ranks} ranks sees alone, and only rank "
        f"{together[first.rank, first['ddp']]['ranks'][0]}'s running statistics are kept",
        fix=_FIX,
        file=file,
        line=line,
    )
