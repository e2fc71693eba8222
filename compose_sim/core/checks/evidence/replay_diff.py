"""How far do the steps that one rank repeated part from those of all ranks? Observations of both runs in, steps with reasons out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from compose_sim.core.checks import Case
from compose_sim.core.events.observations import Observation, Observed

MOST_RANKS_ALONE = 8
_ALMOST_ONE = 0.999
_LOOSER = {"float32": 1.0, "tf32": 10.0, "low": 50.0}  # times the tolerance, by what the numbers are computed in
_SPREAD = 0.02  # of a factor that is the same at every step
_OUTSIDE = ("ZeroRedundancyOptimizer", "PostLocalSGDOptimizer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Factor:
    """By how much too large all gradients of world size 1 are, at every step alike."""

    value: float
    optimizer: int
    step: Observation  # the first of them


def reason_against(observed: Observed) -> str:
    """Why the run cannot be repeated by one rank; nothing where it can."""
    if observed.world_size < 2:
        return "the run had one rank"
    first = observed.ranks.get(0)
    steps = list(first.of("record-step")) if first else []
    models = list(first.of("record-models")) if first else []
    stopped = first.last("record-stopped") if first else None
    if stopped and stopped["reason"] in ("closure", "failed", "unsaved") and not stopped["steps"]:
        return _first_line(str(stopped["detail"]))
    if not steps:
        return "no optimizer step was seen"
    return _reason_against_models(models, observed.world_size) or (
        "" if any(step["fetched"] for step in steps) else "no batch came from a DataLoader"
    )


def _reason_against_models(models: Sequence[Observation], world_size: int) -> str:
    for each in models:
        if each["sharded"]:
            return "parameters are sharded over ranks"
        outside = [name for name in each["kind_of_optimizer"] or () if name in _OUTSIDE]
        if outside:
            return f"{outside[0]} keeps a part of its state on each rank"
        if not each["ranks"]:
            return "no model is wrapped in DistributedDataParallel"
        if any(ranks != world_size for ranks in each["ranks"]):
            return f"DistributedDataParallel joins {min(each['ranks'])} of {world_size} ranks"
        if not each["covered"]:
            return "the optimizer trains parameters that are in no DistributedDataParallel model"
        lossy = [name for name in each["hooks"] or () if "powersgd" in name.lower() or "quantiz" in name.lower()]
        if lossy:
            return f"the communication hook {lossy[0]} approximates gradients"
    return ""


def noise(observed: Observed) -> str:
    """Why one rank with all batches rightly computes something else; nothing where it does not."""
    drew = sorted({name for step in observed.of("record-step") for name in step["drew"] or ()})
    if drew:
        return f"the training draws random numbers ({', '.join(drew)}), as dropout does"
    local = [name for each in observed.of("record-models") for name in each["batchnorm"] or ()]
    return f"BatchNorm ({local[0].removeprefix('module.')}) sees the batch of one rank only" if local else ""


def hooks(observed: Observed) -> tuple[str, ...]:
    """The communication hooks that are not DDP's own averaging."""
    names = {name for each in observed.of("record-models") for name in each["hooks"] or ()}
    return tuple(sorted(name for name in names if name != "allreduce_hook"))


def steps_of(replay: Observed | None) -> list[Observation]:
    """All repeated steps that were compared."""
    return [] if replay is None else list(replay.of("replay"))


def comparable(steps: Sequence[Observation]) -> list[Observation]:
    """Those that mean something: batches were joined, and gradients are numbers, and not all zero."""
    return [
        step for step in steps if not step["why_not"] and step["finite"] and not step["vanished"] and step["cosine"]
    ]


def tolerance_of(step: Observation, case: Case) -> float:
    """How far a step may part: what the person says, looser where numbers are computed with fewer digits."""
    return case.tolerance * _LOOSER.get(str(step["precision"]), 1.0)


def parted(steps: Sequence[Observation], case: Case) -> list[Observation]:
    """The steps that part beyond tolerance."""
    return [step for step in steps if (step["difference"] or 0.0) > tolerance_of(step, case)]


def constant_factor(steps: Sequence[Observation], case: Case) -> Factor | None:
    """The factor between both runs where it is the same for all gradients of an optimizer, at every step, and is not 1."""
    for optimizer in sorted({int(step["optimizer"]) for step in steps}):
        own = [step for step in steps if step["optimizer"] == optimizer and not step["by_value"]]
        ratios = [float(step["ratio"]) for step in own]
        if not own or min(ratios) <= 0:
            continue
        slack = max(tolerance_of(step, case) for step in own)
        same = all(float(step["cosine"]) > min(_ALMOST_ONE, 1.0 - slack / 5) for step in own)
        even = max(ratios) / min(ratios) < 1.0 + _SPREAD + slack
        value = median(ratios)
        if same and even and abs(value - 1.0) > max(0.05, 3 * slack):
            return Factor(value=value, optimizer=optimizer, step=own[0])
    return None


def factor_in_noise(steps: Sequence[Observation], world_size: int) -> Factor | None:
    """The same where dropout or BatchNorm blur each step: only a factor of the world size itself can be made out."""
    if world_size < 3 or len(steps) < 3:
        return None
    for optimizer in sorted({int(step["optimizer"]) for step in steps}):
        own = [step for step in steps if step["optimizer"] == optimizer and not step["by_value"]]
        if len(own) < 3 or median(float(step["cosine"]) for step in own) < 0.8:
            continue
        value = median(float(step["ratio"]) for step in own)
        near = [goal for goal in (float(world_size), 1.0 / world_size) if 0.85 < value / goal < 1.15]
        if near:
            return Factor(value=value, optimizer=optimizer, step=own[0])
    return None


def explained(factor: Factor) -> str:
    """A factor that is none of the ranks': the loss is a sum divided by the fixed size of one rank's batch."""
    size = float(factor.step["batch_size"] or 0)
    several = float(factor.step["batches_a_step"] or 1)
    divisors = [float(divisor) for divisor in factor.step["divisors"] or ()]
    if factor.value < 1 or not size:
        return ""
    found = [divisor for divisor in divisors if abs(divisor - size) < 1e-3 or abs(divisor - size * several) < 1e-3]
    return f"the loss is a sum divided by {found[0]:g}, the size of one rank's batch" if found else ""


def needs_alone(case: Case) -> bool:
    """Whether it must be asked what each rank computes alone: all together parted, with no simple reason."""
    world_size = case.observed.world_size
    steps = comparable(steps_of(case.single))
    if not steps_of(case.single) or world_size > MOST_RANKS_ALONE or noise(case.observed):
        return False
    if not steps:
        return any(step["why_not"] for step in steps_of(case.single))
    return bool(parted(steps, case)) and constant_factor(steps, case) is None


def alone_steps(case: Case) -> list[Observation]:
    """The steps that every rank repeated alone, their mean compared with what DDP made of all."""
    last = max(case.alone, default=None)
    if last is None or len(case.alone) < case.observed.world_size:
        return []
    steps = steps_of(case.alone[last])
    return [step for step in steps if step["finite"] and not step["vanished"] and step["cosine"]]


def _first_line(text: str) -> str:
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return lines[-1].strip() if lines else ""
