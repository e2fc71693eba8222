"""What may a person do to a run that is under way? Break it, heal it, change its links, its size: one value each.

`composesim fault` and its kin, `play`, and the heal that a fault was born with all become one of these. They are written into the
run's folder as JSON, and the process that runs the cluster performs them, one after another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing to break, as the person named it. What it means is in `core/faults/<kind>.py`."""

    kind: str
    nodes: tuple[str, ...] = ()
    rank: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)  # by kind: {"limit": 0.2}
    for_s: float | None = None  # healed by itself after so many seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Heal:
    """Undo one fault (its id), all that bear on a node (its name), or all of them (nothing)."""

    target: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Relink:
    """Give links another shape: texts as `--link` takes them; none at all makes every link plain again."""

    links: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Have so many nodes take part, within the range of `--elastic`."""

    nodes: int


Intervention = Fault | Heal | Relink | Scale
_BY_VERB: dict[str, type[Intervention]] = {"fault": Fault, "heal": Heal, "link": Relink, "scale": Scale}


def intervention_to_dict(intervention: Intervention) -> dict[str, Any]:
    """The intervention as JSON values; `verb` says which it is."""
    verb = next(verb for verb, made in _BY_VERB.items() if isinstance(intervention, made))
    return {"verb": verb, **asdict(intervention)}


def intervention_from_dict(values: Mapping[str, Any]) -> Intervention:
    """What `intervention_to_dict` made these values from; KeyError or TypeError where they are nothing of the kind."""
    fields: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
    }
    made: Callable[..., Intervention] = _BY_VERB[fields.pop("verb")]
    return made(**fields)
