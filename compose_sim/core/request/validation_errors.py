"""Turn the errors of pydantic into messages that quote the value and name the line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from compose_sim.core.request.yaml_source import KeyPath, YamlText
from compose_sim.core.text import did_you_mean, nearest
from compose_sim.errors import SpecError

KeysAt = Callable[[KeyPath], list[str]]  # path of an unknown key -> the keys that are known there
_WRONG_FORM = ("int_type", "tuple_type")
_MAX_LISTED = 20  # a file can have thousands of unknown keys
_EXAMPLES = {"env": '{NAME: "value"}', "nodes": "{memory: 2g}"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One wrong value, and what is wrong with it."""

    path: KeyPath
    text: str
    nearest: str = ""
    hint: str = ""

    @property
    def with_key(self) -> str:
        """Return the message after the key: `memory: 'lots' is not a size`."""
        keys = [part for part in self.path if isinstance(part, str)]
        return f"{keys[-1]}: {self.text}" if keys and not self.text.startswith("unknown key") else self.text

    def inside(self, key: str) -> Problem:
        """Return the problem with the path below a key."""
        return replace(self, path=(key, *self.path))


def error_in_file(read: YamlText, problems: list[Problem]) -> SpecError:
    """Return an error that quotes the first problem by line, and lists the others below."""
    placed = sorted(((_entry(problem, read), problem) for problem in problems), key=lambda pair: read.line_of(pair[0]))
    path, first = placed[0]
    more = "\n".join(f"and on line {read.line_of(other)}: {problem.with_key}" for other, problem in placed[1:])
    return read.error(path, first.with_key, hint=first.hint, more=more)


def _entry(problem: Problem, read: YamlText) -> KeyPath:
    """Return the path of the entry that a problem quotes, if a whole list or mapping was checked."""
    if not problem.path:
        return ("script",) if "script" in problem.text else ("nodes",)
    value: Any = read.values
    for part in problem.path:
        value = value if isinstance(value, str) else value[part]  # `a, b` is read as a list of two
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, entry in entries:
        if f"'{key if isinstance(key, str) else entry}'" in problem.text:
            return (*problem.path, key)
    return problem.path


def problems_of(error: ValidationError, keys_at: KeysAt) -> list[Problem]:
    """Return every problem once: those of a number or of a list of `nodes`, but not of both forms."""
    details = error.errors(include_url=False)
    other_form = [detail for detail in details if detail["loc"][:1] == ("nodes",) and detail["type"] in _WRONG_FORM]
    written = [detail for detail in details if detail not in other_form]
    return [_problem(detail, keys_at) for detail in written[:_MAX_LISTED] or details[:1]]


def _problem(detail: ErrorDetails, keys_at: KeysAt) -> Problem:
    path, given = _path(detail["loc"]), detail["input"]
    key = str(path[-1]) if path else ""
    kind, context = detail["type"], detail.get("ctx", {})
    if kind == "missing":
        return Problem(path=path[:-1], text=f"'{key}' is missing")
    if kind == "extra_forbidden":
        return _unknown_key(path, key, given, keys_at(path))
    if kind == "literal_error":
        choices = [choice.strip("'") for choice in context["expected"].replace(" or ", ", ").split(", ")]
        near = nearest(str(given), choices) or choices[0]
        text = f"'{given}' is not one of {', '.join(choices)}"
        return Problem(path=path, text=text, nearest=near, hint=f"{key}: {near}")
    return Problem(path=path, text=_message(kind, key, given, context, detail["msg"]), hint=_example(kind, key, given))


def _message(kind: str, key: str, given: Any, context: Mapping[str, Any], otherwise: str) -> str:
    shown = "a list" if isinstance(given, list | tuple) else "a mapping" if isinstance(given, dict) else f"'{given}'"
    match kind:
        case "value_error" if not (isinstance(given, dict | list) and f"'{given}'" in str(context["error"])):
            return str(context["error"])
        case "int_parsing" | "int_type" | "int_from_float":
            return f"{shown} is not a whole number" + (" or a list of nodes" if key == "nodes" else "")
        case "float_parsing" | "float_type":
            return f"{shown} is not a number"
        case "bool_parsing" | "bool_type":
            return f"{shown} is neither true nor false"
        case "dict_type" | "model_type":
            return f"{shown} is not a mapping"
        case "tuple_type":
            return f"{shown} is not a list"
        case "string_type" | "value_error":
            return f"{shown} is not a single value"
        case "string_too_short":
            return "is empty"
        case "string_pattern_mismatch":
            return f"{shown} is not a valid name: use lower-case letters, digits and -"
        case "greater_than_equal":
            return f"{shown} is too small: at least {context['ge']:g}"
        case "greater_than":
            return f"{shown} is too small: more than {context['gt']:g}" + (
                ", or never" if key == "hang_timeout" else ""
            )
        case "less_than_equal":
            return f"{shown} is too large: at most {context['le']:g}"
    return f"{shown}: {otherwise}"


def _example(kind: str, key: str, given: Any) -> str:
    if kind == "tuple_type" and isinstance(given, str):
        return f"{key}: [{', '.join(given.split())}]"
    return f"{key}: {_EXAMPLES[key]}" if kind == "dict_type" and key in _EXAMPLES else ""


def _unknown_key(path: KeyPath, key: str, given: Any, known: list[str]) -> Problem:
    near = nearest(key, known)
    written = f" {given}" if isinstance(given, str) else ""
    text = f"unknown key '{key}'{did_you_mean(key, known)}"
    return Problem(path=path, text=text, nearest=near, hint=f"{near}:{written}" if near else "")


def _path(location: tuple[int | str, ...]) -> KeyPath:
    """Return the path in the spec, without the name that pydantic gives to one form of `nodes`."""
    return (location[0], *location[2:]) if location[:1] == ("nodes",) and len(location) > 1 else location
