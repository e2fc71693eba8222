"""The known mistakes that `check --self-test` plants into a script, and what the checks said of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from compose_sim.core.events.observations import Observed
from compose_sim.core.report.report import MistakeReport, Report
from compose_sim.core.text import format_count
from compose_sim.node.records.script import MistakePlanted


@dataclass(frozen=True, slots=True)
class Mistake:
    """A mistake that can be planted: what a script then does, what it takes to plant it, and the checks that are to find it."""

    text: str
    needs: str
    expects: tuple[str, ...]


# By the names that node/rank/torch_hooks/mistakes.py knows. The checks that need a run with one rank find only the last one.
MISTAKES: Final[Mapping[str, Mistake]] = {
    "not-reduced": Mistake(
        "no gradient is reduced",
        "a DistributedDataParallel model, or all_reduce of gradients",
        ("params-in-sync", "gradient-mean"),
    ),
    "outside-wrapper": Mistake(
        "one parameter is outside the wrapper",
        "a DistributedDataParallel model of several parameters",
        ("params-after-wrap",),
    ),
    "other-weights": Mistake(
        "rank 1 begins with other weights", "a DistributedDataParallel model", ("params-in-sync",)
    ),
    "other-rate": Mistake(
        "rank 1 has twice the learning rate", "an optimizer that steps on rank 1", ("params-in-sync",)
    ),
    "other-gradient": Mistake(
        "rank 1 halves a gradient after reduction", "an optimizer that steps on rank 1", ("params-in-sync",)
    ),
    "same-share": Mistake("rank 1 trains on the samples of rank 0", "a DistributedSampler", ("sampler-overlap",)),
    "fixed-epoch": Mistake(
        "the epoch of the sampler is not set", "a call of DistributedSampler.set_epoch", ("set-epoch",)
    ),
    "same-randomness": Mistake(
        "all ranks draw the same random numbers",
        "random numbers in a DistributedDataParallel model",
        ("same-randomness",),
    ),
    "summed": Mistake(
        "gradients are added up, not averaged", "a backward pass from a loss", ("loss-scale", "matches-single")
    ),
}
NEED_A_REPLAY: Final = frozenset({"summed"})


def has_reached_it(observed: Observed) -> bool:
    """Return whether the script of a run with a mistake has reached the place where that changes something."""
    return observed.first(MistakePlanted) is not None


def outcome(name: str, before: Report, after: Report, *, is_planted: bool, no_step: str = "") -> MistakeReport:
    """Return whether a run with a mistake has new problems, or why not; `no_step` is what `why_no_step` says of that run."""
    mistake = MISTAKES[name]
    if no_step:
        return MistakeReport(id=name, text=mistake.text, status="not-planted", why=f"no optimizer stepped{no_step}")
    if not is_planted:
        return MistakeReport(id=name, text=mistake.text, status="not-planted", why=f"it takes {mistake.needs}")
    known = {each.id for each in before.checks if each.is_problem}
    found = tuple(each.id for each in after.checks if each.is_problem and each.id not in known)
    if found:
        return MistakeReport(id=name, text=mistake.text, status="found", checks=found)
    if after.run_failed:
        return MistakeReport(id=name, text=mistake.text, status="found", why=f"the run {after.verdict}")
    said = [each for each in after.checks if each.id in mistake.expects]
    reasons = [f"{each.id}: {each.detail}" for each in said] or [f"{', '.join(mistake.expects)} did not run"]
    return MistakeReport(id=name, text=mistake.text, status="missed", why="; ".join(reasons))


def summary(mistakes: tuple[MistakeReport, ...]) -> str:
    """Return `7 of 8 planted mistakes would be found in this script`."""
    planted = [each for each in mistakes if each.status != "not-planted"]
    found = sum(each.status == "found" for each in planted)
    return f"{found} of {format_count(len(planted), 'planted mistake')} would be found in this script"
