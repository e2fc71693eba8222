"""Read a replay: which repeated steps mean something, how far they differ and by which factor, and which files of the run it reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from compose_sim.core.checks import CHECKPOINT_ENDINGS, Case
from compose_sim.core.checks.sketches import ADAPTIVE
from compose_sim.core.checks.tolerances import BY_PRECISION, PARALLEL, ROUNDING_16_BIT, WHOLE_NUMBER
from compose_sim.core.events.observations import Observed
from compose_sim.node.records.devices_and_files import FileUse
from compose_sim.node.records.gradients import SketchedStep
from compose_sim.node.records.models import BY_HAND, OptimizerStep
from compose_sim.node.records.precautions import Clip
from compose_sim.node.records.record import Place
from compose_sim.node.records.replays import RecordedModels, RecordedStep, ReplayedStep, ReplayEnd


@dataclass(frozen=True, slots=True, kw_only=True)
class Factor:
    """The factor by which all gradients at world size 1 are too large, the same at every step."""

    value: float
    optimizer: int
    step: ReplayedStep  # the first of them
    is_by_hand: bool = False  # without an optimizer of torch


def steps_of(replay: Observed | None) -> list[ReplayedStep]:
    """Return all repeated steps that were compared."""
    return [] if replay is None else list(replay.of(ReplayedStep))


def comparable(steps: Sequence[ReplayedStep]) -> list[ReplayedStep]:
    """Return the steps that mean something: batches were joined, and gradients are finite and not all zero."""
    return [step for step in steps if not step.why_not and has_gradient(step)]


def has_gradient(step: ReplayedStep) -> bool:
    return step.finite and not step.vanished and bool(step.cosine)


def tolerance_of(step: ReplayedStep, case: Case) -> float:
    """Return how far a step may differ: the user's tolerance, or more if numbers are computed with fewer digits."""
    return case.tolerance * BY_PRECISION[step.precision]


def beyond_tolerance(steps: Sequence[ReplayedStep], case: Case) -> list[ReplayedStep]:
    """Return the steps that differ by more than the tolerance."""
    return [step for step in steps if (step.difference or 0.0) > tolerance_of(step, case)]


def constant_factor(steps: Sequence[ReplayedStep], case: Case) -> Factor | None:
    """Return the factor between both runs if it is the same for all gradients of an optimizer at every step, and is not 1."""
    for own in _by_optimizer(steps):
        ratios = [step.ratio or 0.0 for step in own]
        if min(ratios) <= 0:
            continue
        slack = max(tolerance_of(step, case) for step in own)
        same = all((step.cosine or 0.0) > min(PARALLEL, 1.0 - slack / 5) for step in own)
        even = max(ratios) / min(ratios) < 1.0 + ROUNDING_16_BIT + slack
        value = median(ratios)
        if same and even and abs(value - 1.0) > max(0.05, 3 * slack):
            return Factor(value=value, optimizer=own[0].optimizer, step=own[0], is_by_hand=is_by_hand(case))
    return None


def only_scaled(case: Case) -> bool:
    """Return whether one rank has another multiple of each tensor's gradient, with optimizers whose steps hardly depend on that."""
    steps = comparable(steps_of(case.single))
    are_multiples = all((step.least_cosine or 0.0) > PARALLEL for step in steps)
    is_adaptive = all(each.type.startswith(ADAPTIVE) for each in case.observed.of(SketchedStep))
    return bool(beyond_tolerance(steps, case)) and are_multiples and is_adaptive and not case.observed.first(Clip)


def is_by_hand(case: Case) -> bool:
    """Return whether the script makes its steps without an optimizer of torch."""
    return any(each.type == BY_HAND for each in case.observed.of(OptimizerStep))


def factor_in_noise(steps: Sequence[ReplayedStep], world_size: int) -> Factor | None:
    """Return the factor if dropout or BatchNorm blurs each step: then only a factor equal to the world size can be detected."""
    if world_size < 3 or len(steps) < 3:
        return None
    for own in _by_optimizer(steps):
        if len(own) < 3 or median(step.cosine or 0.0 for step in own) < 0.8:
            continue
        value = median(step.ratio or 0.0 for step in own)
        if any(0.85 < value / goal < 1.15 for goal in (float(world_size), 1.0 / world_size)):
            return Factor(value=value, optimizer=own[0].optimizer, step=own[0])
    return None


def _by_optimizer(steps: Sequence[ReplayedStep]) -> list[list[ReplayedStep]]:
    """Return the steps of each optimizer, without those whose gradients were clipped by value."""
    found: dict[int, list[ReplayedStep]] = {}
    for step in steps:
        if not step.by_value:
            found.setdefault(step.optimizer, []).append(step)
    return [found[optimizer] for optimizer in sorted(found)]


def explained(factor: Factor) -> str:
    """Return why a factor is no error of the ranks: the loss is a sum divided by the fixed batch size of one rank."""
    size, several = float(factor.step.batch_size), factor.step.batches_per_step
    if factor.is_by_hand:
        return "the script updates the weights itself, and may divide the gradient there"
    if factor.value < 1 or not size:
        return ""
    if size == 1:
        return "the loss may be a sum over batches of one sample, which is their mean"
    found = [each for each in factor.step.divisors if min(abs(each - size), abs(each - size * several)) < WHOLE_NUMBER]
    return f"the loss is a sum divided by {found[0]:g}, the size of one rank's batch" if found else ""


def noise(observed: Observed) -> str:
    """Return why one rank with all batches legitimately computes something else; "" if it should not."""
    drawing = [step for step in observed.of(RecordedStep) if step.drew]
    if drawing:
        drew = ", ".join(sorted({name for step in drawing for name in step.drew}))
        steps = {step.step for step in observed.of(RecordedStep)} - {step.step for step in drawing}
        first = 1 + min(step.step for step in drawing)
        when = f"before step {first} ({drew}), as for a new model" if steps else f"({drew}), as dropout does"
        return f"the training draws random numbers {when}"
    local = [name for each in observed.of(RecordedModels) for name in each.batchnorm]
    return f"BatchNorm ({local[0].removeprefix('module.')}) sees the batch of one rank only" if local else ""


def step_place(case: Case) -> Place | None:
    """Return the line at which the script steps, if that was recorded."""
    return next((each.at for each in case.observed.of(OptimizerStep) if each.at), None)


def was_replayed(replay: Observed) -> bool:
    """Return whether a run at world size 1 came as far as the recorded steps."""
    return any(replay.of(ReplayedStep, ReplayEnd))


def files_made(observed: Observed) -> frozenset[str]:
    """Return the files that a run wrote, and that it had not read before: they may have been there."""
    written: dict[str, float] = {}
    read: dict[str, float] = {}
    for each in observed.of(FileUse):
        for path in filter(None, (each.path, each.to)) if each.makes else ():
            written[path] = min(each.t, written.get(path, each.t))
        if each.op in ("read", "update", "append"):
            read[each.path] = min(each.t, read.get(each.path, each.t))
    return frozenset(path for path, t in written.items() if read.get(path, t) >= t)


def found_of_run(left: frozenset[str], replay: Observed) -> FileUse | None:
    """Return where a replay first reads a checkpoint that the run has left, and not the replay itself; None if it reads none."""
    for each in replay.of(FileUse):
        if each.makes:
            left -= {each.path, each.to or each.path}
        elif each.op == "read" and each.path in left and each.path.endswith(CHECKPOINT_ENDINGS):
            return each
    return None
