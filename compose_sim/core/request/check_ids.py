"""List the ids of all checks, in the order in which a report lists them, and suggest the nearest for a misspelt one."""

from __future__ import annotations

from difflib import get_close_matches

from compose_sim.errors import SpecError

# A cause stands before its consequences. A check is `core/checks/rules/<id with underscores>.py`.
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
    "loss-scale",
    "matches-single",
    "sampler-overlap",
    "set-epoch",
    "sampler-tail",
    "checkpoint-race",
    "batchnorm-local",
    "same-randomness",
    "metric-local",
    "teardown",
)


def known_check(name: str) -> str:
    """The same id; SpecError naming the nearest for one that there is not."""
    problem = unknown_check(name)
    if problem:
        raise SpecError(problem, hint=f"composesim check --explain {_nearest(name) or IDS[0]}")
    return name


def unknown_check(name: str) -> str:
    """What to say of an id that there is not; nothing where there is."""
    if name in IDS:
        return ""
    nearest = _nearest(name)
    return f"there is no check '{name}'" + (
        f"; did you mean '{nearest}'?" if nearest else f"; there are {', '.join(IDS)}"
    )


def _nearest(name: str) -> str:
    return next(iter(get_close_matches(name.lower().replace("_", "-"), IDS, n=1)), "")
