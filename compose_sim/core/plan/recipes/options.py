"""Check and parse the options of recipes (`--option NAME=VALUE`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from compose_sim.core.request.spec import ClusterSpec
from compose_sim.core.text import did_you_mean
from compose_sim.errors import SpecError

Value = TypeVar("Value")
_SWITCH = {"on": True, "yes": True, "true": True, "1": True, "off": False, "no": False, "false": False, "0": False}


def check_options(given: Mapping[str, str], known: Mapping[str, str], *, recipe: str) -> None:
    """Raise SpecError for an option that the recipe does not have."""
    for name in given:
        if name not in known:
            takes = did_you_mean(name, known) if known else ": it takes none"
            raise SpecError(
                f"recipe '{recipe}' has no option '{name}'{takes}", hint=f"composesim up --recipe {recipe} --help"
            )


def option_of(
    spec: ClusterSpec, name: str, parse: Callable[[str], Value], default: Value, *, expected: str, example: str
) -> Value:
    """Return the parsed value of an option, or `default`; raise SpecError if `parse` raises ValueError."""
    text = spec.options.get(name)
    try:
        return default if text is None else parse(text)
    except ValueError:
        hint = f"composesim up --recipe {spec.recipe} --option {name}={example} …"
        raise SpecError(f"option '{name}' is '{text}': expected {expected}", hint=hint) from None


def switch(spec: ClusterSpec, name: str, *, default: bool = False) -> bool:
    """Return the value of an option that is on or off."""
    return option_of(spec, name, _on_or_off, default, expected="on or off", example="on")


def whole_number(spec: ClusterSpec, name: str, default: int, *, least: int = 0) -> int:
    """Return the value of an option that is a whole number."""

    def parse(text: str) -> int:
        if not (text.isascii() and text.isdigit() and int(text) >= least):
            raise ValueError(text)
        return int(text)

    expected = f"a whole number of at least {least}"
    return option_of(spec, name, parse, default, expected=expected, example=str(max(least, 2)))


def _on_or_off(text: str) -> bool:
    if text.lower() not in _SWITCH:
        raise ValueError(text)
    return _SWITCH[text.lower()]
