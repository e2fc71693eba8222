"""Which texts may stand for a value of a spec? Types that read them, each with what an editor is told of it."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from compose_sim.core.request.check_ids import IDS, unknown_check
from compose_sim.core.request.gpu_selection import parse_gpus
from compose_sim.core.request.service_names import BUILT_IN, check_service
from compose_sim.core.units import parse_bytes, parse_seconds

Size = Annotated[
    int,
    BeforeValidator(parse_bytes),
    Field(ge=6 << 20),  # Docker refuses a memory limit below 6 MiB
    WithJsonSchema({"type": ["string", "integer"], "examples": ["512m", "2g"]}),
]
Duration = Annotated[
    float,
    BeforeValidator(parse_seconds),
    Field(gt=0),
    WithJsonSchema({"type": ["string", "number"], "examples": ["90s", "10m"]}),
]
Gpus = Annotated[
    str,
    BeforeValidator(parse_gpus),
    WithJsonSchema({"type": ["string", "integer", "array"], "examples": ["all", "none", "0,1", "GPU-8932f937"]}),
]
Cpus = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Ranks = Annotated[int, Field(ge=1, le=1024)]
Text = Annotated[
    str,
    BeforeValidator(lambda value: str(value) if isinstance(value, int | float) else value),
    WithJsonSchema({"type": ["string", "number", "boolean"]}),
]


def _one_or_more(value: Any) -> Any:
    """One text as well as a list of them."""
    return (value,) if isinstance(value, str) else value


Texts = Annotated[
    tuple[str, ...],
    BeforeValidator(_one_or_more),
    WithJsonSchema({"type": ["string", "array"], "items": {"type": "string"}}),
]


def _check_id(name: str) -> str:
    if problem := unknown_check(name):
        raise ValueError(problem)
    return name


def _words(value: Any) -> Any:
    """`a,b` as well as `[a, b]` and `[a, "b,c"]`."""
    given = [value] if isinstance(value, str) else value
    if isinstance(given, list | tuple) and all(isinstance(entry, str) for entry in given):
        return tuple(dict.fromkeys(word.strip() for entry in given for word in entry.split(",") if word.strip()))
    return value


CheckIds = Annotated[
    tuple[Annotated[str, AfterValidator(_check_id)], ...],
    BeforeValidator(_words),
    WithJsonSchema({"anyOf": [{"type": "array", "items": {"enum": [*IDS]}}, {"type": "string"}]}),
]

Services = Annotated[
    tuple[Annotated[str, AfterValidator(check_service)], ...],
    BeforeValidator(_words),
    WithJsonSchema({"type": ["string", "array"], "items": {"type": "string"}, "examples": [[*BUILT_IN]]}),
]
