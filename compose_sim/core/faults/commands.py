"""Define what a user can do to a running cluster: inject and heal faults, change links, scale, profile, dump.

`composesim fault`, `heal`, `link`, `scale`, `profile` and `dump` write these values as JSON into the run folder. The process that
runs the cluster executes them in order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from compose_sim.core.json_values import from_json


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault to inject, as the user named it. `core/faults/kinds` compiles it to an Effect."""

    kind: str
    nodes: tuple[str, ...] = ()
    rank: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)  # by kind: {"limit": 0.2}
    for_s: float | None = None  # heal it after this many seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Heal:
    """Heal one fault (by id), all faults of a node (by name), or all faults (if the target is empty)."""

    target: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetLinks:
    """Change the shape of links, in the syntax of `--link`; if there are none, all links become plain."""

    links: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Change the number of nodes that take part, within the range of `--elastic`."""

    nodes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileSteps:
    """Have all ranks profile some steps, from the first one on."""

    first: int
    steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpRanks:
    """Have all ranks write what torch's flight recorder holds, and tell where they are."""

    at_end: bool = False  # the run is about to be stopped, so also ask ranks that the question could, rarely, end


Intervention = Fault | Heal | SetLinks | Scale | ProfileSteps | DumpRanks
_BY_VERB: dict[str, type[Intervention]] = {
    "fault": Fault,
    "heal": Heal,
    "link": SetLinks,
    "scale": Scale,
    "profile": ProfileSteps,
    "dump": DumpRanks,
}


def intervention_to_dict(intervention: Intervention) -> dict[str, Any]:
    """Return the intervention as JSON values; `verb` names its type."""
    verb = next(verb for verb, made in _BY_VERB.items() if isinstance(intervention, made))
    return {"verb": verb, **asdict(intervention)}


def intervention_from_dict(values: Any) -> Intervention:
    """Return the intervention that `intervention_to_dict` serialized; raise ValueError for anything else."""
    verb = values.get("verb") if isinstance(values, Mapping) else None
    if not isinstance(verb, str) or verb not in _BY_VERB:
        raise ValueError(f"{verb!r:.80} is not a verb")
    return from_json(_BY_VERB[verb], values)
