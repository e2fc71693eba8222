"""Describe the fields of a spec: as flags, as keys of `composesim.yaml` and in the reference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from compose_sim.plugins.registry import built_in

OPTIONS = "composesim.options"  # engine -> a model with the fields that are for it; their flags are a group of its name
CHECK_OPTIONS = "composesim.check_options"  # a model with more fields of `check`; their flags are a group of its name
Kind = Literal["value", "switch", "list", "mapping"]
# Group of flags -> its heading in `--help`, in this order
GROUPS = {
    "cluster": "Cluster",
    "gpus": "GPUs",
    "network": "Network",
    "image": "Image and files",
    "check": "Checks",
    "run": "Run",
    "recipe": "Recipe",
    **{name: f"{name.title()} (--engine {name})" for name in built_in(OPTIONS)},
    **{name: each.summary for name, each in built_in(CHECK_OPTIONS).items()},
}
_KINDS: dict[Any, Kind] = {tuple: "list", dict: "mapping"}


@dataclass(frozen=True, slots=True)
class Flag:
    """Mark a field that has a flag. The marker is part of the field's `Annotated` type."""

    group: str  # of `--help`
    metavar: str = ""  # of the value; a Literal shows its choices, a switch has no value
    names: tuple[str, ...] = ()  # if the flag is not named after the field
    unset: str = ""  # describes the default, if that is None
    bare: str = ""  # the value, if the flag is given without =VALUE
    needs_docker: bool = False  # other engines accept the default only, unless a plug-in supports the option


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecOption:
    """A field of a spec, as the user sees it."""

    field: str
    key: str  # in composesim.yaml
    flags: tuple[str, ...]  # empty if there is only the key
    metavar: str
    description: str
    default: str
    example: Any  # as composesim.yaml holds it; None if the default shows how to write a value
    kind: Kind
    needs_docker: bool
    group: str
    bare: str

    @property
    def argument(self) -> str:
        """Return how a command line names the field."""
        return self.flags[0] if self.flags else self.key.upper()

    @property
    def help(self) -> str:
        """Return the description with the default or an example."""
        extra = f"default: {self.default}" if self.default else f"example: {self._example}" if self.example else ""
        return f"{self.description}  [{extra}]" if extra else self.description

    @property
    def _example(self) -> str:
        """Return the example as a value of the flag, which takes one entry of a list or a mapping."""
        if isinstance(self.example, dict):
            return next(f"{name}={value}" for name, value in self.example.items())
        return str(self.example[0] if isinstance(self.example, list) else self.example)


def options_of(spec: type[BaseModel]) -> tuple[SpecOption, ...]:
    """Return one SpecOption per field of a spec, in the order of the fields."""
    return tuple(_option_of(name, field) for name, field in spec.model_fields.items())


def _option_of(name: str, field: FieldInfo) -> SpecOption:
    marker = next((entry for entry in field.metadata if isinstance(entry, Flag)), None)
    flag = marker or Flag("run")
    key, origin = field.alias or name, get_origin(field.annotation)
    return SpecOption(
        field=name,
        key=key,
        flags=(flag.names or (f"--{key.replace('_', '-')}",)) if marker else (),
        metavar="|".join(get_args(field.annotation)) if origin is Literal else flag.metavar,
        description=field.description or "",
        default=flag.unset or _shown(field.default),
        example=next(iter(field.examples or ()), None),
        kind="switch" if field.annotation is bool else _KINDS.get(origin, "value"),
        needs_docker=flag.needs_docker,
        group=flag.group,
        bare=flag.bare,
    )


def _shown(default: object) -> str:
    return str(default) if isinstance(default, str | int) and default is not False else ""
