"""Is the gradient that of the mean over all samples, and the learning rate scaled once?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from compose_sim.core.checks import Case, Result, failed, not_applicable, passed
from compose_sim.core.checks.evidence.replay_diff import (
    Factor,
    alone_steps,
    comparable,
    constant_factor,
    explained,
    factor_in_noise,
    noise,
    parted,
    steps_of,
)
from compose_sim.core.checks.rules.matches_single import place, why_not
from compose_sim.core.events.observations import Observation

QUESTION = "Is the gradient that of the mean over all samples, and the learning rate scaled once?"
_ROOM = 1.05  # above the world size, for learning rates that were rounded
_RATES = ("lr", "initial_lr", "max_lr")


def judge(case: Case) -> Result:
    """Gradients and learning rates of all ranks, against those of one rank with the same batches."""
    why = why_not(case)
    if why:
        return not_applicable(why)
    world_size = case.observed.world_size
    rate = _rate_scaled_twice(steps_of(case.single), world_size)
    if rate:
        return failed(
            rate, fix="multiply the learning rate by the world size once, or by its square root", **place(case)
        )
    steps = comparable(steps_of(case.single))
    blurred = noise(case.observed)
    factor = factor_in_noise(steps, world_size) if blurred else constant_factor(steps, case)
    if factor is None and not blurred:
        factor = constant_factor(alone_steps(case), case)
    if factor is not None:
        reason = explained(factor)
        if reason:
            return not_applicable(f"{reason}: whether that is meant cannot be seen")
        return _wrong_factor(factor, case)
    if blurred:
        return not_applicable(f"{blurred}, and gradients cannot be compared")
    alone = alone_steps(case)
    if not steps and not (alone and not parted(alone, case)):
        return not_applicable(next((str(step["why_not"]) for step in steps_of(case.single) if step["why_not"]), ""))
    if not steps or parted(steps, case):
        return not_applicable("the loss is no mean over samples, so that a scale cannot be seen")
    ratios = [float(step["ratio"]) for step in steps]
    return passed(
        f"gradients of {world_size} ranks are {min(1 / ratio for ratio in ratios):.3f} to "
        f"{max(1 / ratio for ratio in ratios):.3f} times those of one rank with the same batches"
    )


def _wrong_factor(factor: Factor, case: Case) -> Result:
    world_size, scale = case.observed.world_size, 1.0 / factor.value
    times = f"1/{factor.value:.2f} of" if factor.value > 1 else f"{scale:.2f} times"
    text = f"gradients at world size {world_size} are {times} those of one rank with the same batches"
    if factor.value > 1:
        return failed(
            f"{text}: the loss is a sum over samples, or divided by the world size although DDP takes the mean already",
            fix='take the mean over the samples of the rank (reduction="mean"), and leave the mean over ranks to DDP',
            **place(case),
        )
    return failed(
        f"{text}: the loss is multiplied by the world size, or gradients are summed over ranks and not divided",
        fix="divide summed gradients by the world size, and multiply the loss by nothing",
        **place(case),
    )


def _rate_scaled_twice(steps: Sequence[Observation], world_size: int) -> str:
    """What to say where a learning rate grew by more than the world size. Only what is fixed is compared: a warm-up is not."""
    firsts = {int(step["optimizer"]): step for step in reversed(steps)}
    for optimizer, first in sorted(firsts.items()):
        own = [step for step in steps if step["optimizer"] == optimizer]
        pairs = zip(first["settings"] or (), first["recorded_settings"] or (), strict=False)
        for group, (single, recorded) in enumerate(pairs):
            for name, one, many in _fixed_rates(single, recorded, [_group(step, group) for step in own]):
                if one > 0 and many / one > world_size * _ROOM:
                    return (
                        f"{name} is {many:.3g} at world size {world_size} and {one:.3g} at 1, {many / one:.3g} times as much: "
                        f"it is scaled more than once for {world_size} times the samples"
                    )
    return ""


def _fixed_rates(
    single: Mapping[str, Any], recorded: Mapping[str, Any], all_steps: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[str, float, float]]:
    for name in _RATES:
        one, many = single.get(name), recorded.get(name)
        if isinstance(one, int | float) and isinstance(many, int | float):
            fixed = name != "lr" or all(step.get("lr") == many for step in all_steps)
            if fixed:
                yield {"lr": "the learning rate"}.get(name, name), float(one), float(many)


def _group(step: Observation, group: int) -> Mapping[str, Any]:
    groups = step["recorded_settings"] or ()
    return groups[group] if group < len(groups) else {}
