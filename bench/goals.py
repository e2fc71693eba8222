"""Judge whether a goal is reached, by which ratio, and with what certainty."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from bench.measure import Samples


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """`mine` may take `factor` times as long as `rival` plus `allowance` seconds; without a rival, only the allowance."""

    text: str
    mine: str
    rival: str | None = None
    factor: float = 0.0
    allowance: float = 0.0


@dataclass(slots=True, kw_only=True)
class Row:
    """One row of the specification: what was timed, and what had to be shown."""

    key: str
    title: str
    goals: list[Goal]
    samples: dict[str, Samples] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)  # contestant -> why there is no figure
    notes: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        missing = dict(self.missing)
        for name, samples in self.samples.items():
            if not samples.seconds:
                missing[name] = f"every run failed, the last with: {samples.failures[-1]}"
        return {
            "title": self.title,
            "contestants": {
                name: {"seconds": [round(value, 4) for value in samples.seconds], "failures": samples.failures}
                for name, samples in self.samples.items()
                if samples.seconds
            },
            "missing": missing,
            "goals": [_judge(goal, self.samples, missing) for goal in self.goals],
            "notes": self.notes,
        }


def _judge(goal: Goal, samples: Mapping[str, Samples], missing: Mapping[str, str]) -> dict[str, Any]:
    """Compare within rounds: the two runs of a round saw the same machine, those of different rounds may not have."""
    verdict: dict[str, Any] = {"goal": goal.text, "mine": goal.mine, "rival": goal.rival}
    verdict.update(reached=None, ratio=None)
    for name in filter(None, (goal.mine, goal.rival)):
        if name not in samples or not samples[name].seconds:
            verdict["why"] = f"{name}: {missing.get(name, 'not measured')}"
            return verdict
    mine = samples[goal.mine].seconds
    rival = samples[goal.rival].seconds if goal.rival else [0.0] * len(mine)
    pairs = list(zip(mine, rival, strict=False))  # a contestant that failed too often has fewer rounds
    verdict["excess_s"] = round(median(a - goal.factor * b - goal.allowance for a, b in pairs), 3)
    verdict["reached"] = verdict["excess_s"] <= 0
    if goal.rival:
        ratios = [a / b for a, b in pairs]
        verdict["ratio"] = [round(value, 3) for value in (median(ratios), min(ratios), max(ratios))]
    return verdict
