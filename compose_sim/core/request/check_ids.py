"""List the ids of all checks, in the order in which a report lists them, and suggest the nearest for a misspelled one."""

from __future__ import annotations

from compose_sim.core.spelling import did_you_mean, nearest
from compose_sim.errors import SpecError

# Causes come before their consequences. `core/checks/run.py` lists the checks in the same order.
IDS = (
    "hang",
    "collective-mismatch",
    "rank-confusion",
    "host-dependence",
    "wrapper-bypassed",
    "params-after-wrap",
    "unused-params",
    "uneven-inputs",
    "params-in-sync",
    "gradient-mean",
    "gradient-clipping",
    "loss-scale",
    "matches-single",
    "replicated-tensors",
    "sampler-overlap",
    "set-epoch",
    "sampler-tail",
    "checkpoint-race",
    "checkpoint-load",
    "batchnorm-local",
    "same-randomness",
    "metric-local",
    "nondeterminism",
    "wasted-time",
    "teardown",
)


def chosen(only: tuple[str, ...], skip: tuple[str, ...]) -> tuple[str, ...]:
    """Return the ids of the chosen checks, in the order of IDS."""
    return tuple(name for name in IDS if (not only or name in only) and name not in skip)


def known_check(name: str) -> str:
    """Return the id; raise SpecError that suggests the nearest one if it does not exist."""
    problem = unknown_check(name)
    if problem:
        raise SpecError(problem, hint=f"composesim check --explain {nearest(name, IDS) or IDS[0]}")
    return name


def unknown_check(name: str) -> str:
    """Return why an id does not exist, or "" if it does."""
    return "" if name in IDS else f"there is no check '{name}'{did_you_mean(name, IDS)}"
