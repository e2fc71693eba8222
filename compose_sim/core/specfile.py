"""What does a spec file ask for, and what is asked for once the flags have won over it? Text in, values out.

A spec file is a `composesim.yaml`, or a pyproject.toml with a table `[tool.composesim]`.

Every error names where the value stands: file, line and key, or the flag.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from compose_sim.core.quantities import format_bytes
from compose_sim.core.spec import CheckSpec, ClusterSpec, NodeSpec
from compose_sim.core.tomltext import read_toml
from compose_sim.core.yamltext import KeyPath, YamlText, read_yaml
from compose_sim.errors import SpecError

_FLAGS = {"mounts": "--mount", "module": "-m", "script": "SCRIPT", "args": "ARGS"}  # where the name is not the field's
_PROGRAM = ("script", "module", "args")
_OF_EACH_NODE = ("nproc_per_node", "cpus", "memory")
_SIZES = ("memory", "shm_size")
_NOT_OF_THE_KIND = ("int_type", "tuple_type")
_EXAMPLES = {"env": "{NAME: value}", "nodes": "{memory: 2g}"}


def parse_spec_text(text: str, source: str, variables: Mapping[str, str]) -> dict[str, Any]:
    """
    The checked values of a spec file, as they were written; `variables` are what `${NAME}` may refer to.

    Raises SpecError naming file, line and key.
    """
    read = (read_toml if source.endswith(".toml") else read_yaml)(text, source, variables)
    try:
        ClusterSpec.model_validate(read.values)
    except ValidationError as error:
        raise _error_in_file(read, _problems(error)) from None
    return read.values


def make_spec(values_of_file: Mapping[str, Any], flags: Mapping[str, Any]) -> ClusterSpec:
    """
    The request of a spec file and of flags together. `flags` holds only those that were given, by field name.

    A flag wins over the file, and over what single nodes have of their own. Environments are merged by name; mounts and
    environment files of the flags come after those of the file; a script or module named by flag has its own arguments.
    Raises SpecError naming the flag.
    """
    _check_flags(flags)
    if any(flags.get(field) is not None for field in ("script", "module")):
        values_of_file = {key: value for key, value in values_of_file.items() if key not in _PROGRAM}
    values: dict[str, Any] = {**values_of_file, **flags}
    if isinstance(values.get("nodes"), list | tuple):
        values["nodes"] = [_without(node, flags) for node in values["nodes"]]
    if "env" in flags:
        values["env"] = {**values_of_file.get("env", {}), **flags["env"]}
    if "check" in flags:
        values["check"] = _merged_check(values_of_file.get("check", {}), flags["check"])
    for field in ("mounts", "env_file"):
        if field in flags:
            values[field] = [*values_of_file.get(field, ()), *flags[field]]
    try:
        return ClusterSpec.model_validate(values)
    except ValidationError as error:
        problem = _problems(error)[0]
        raise SpecError(problem.text, hint=problem.hint) from None


def _merged_check(of_file: Mapping[str, Any], flags: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of both; a check that a flag asks for is run even where the file skips it."""
    merged = {**of_file, **flags}
    if "only" in flags and "skip" not in flags and "skip" in of_file:
        asked = CheckSpec(only=flags["only"]).only
        merged["skip"] = [name for name in CheckSpec(skip=of_file["skip"]).skip if name not in asked]
    return merged


def flag_of(field: str) -> str:
    """How `up` names a field on its command line."""
    return _FLAGS.get(field, "--" + field.replace("_", "-"))


def _check_flags(flags: Mapping[str, Any]) -> None:
    try:
        ClusterSpec.model_validate(dict(flags))
    except ValidationError as error:
        problem = _problems(error)[0]
        if not problem.path:
            raise SpecError(problem.text, hint="composesim up [SCRIPT | -m MODULE] ARGS…") from None
        of_check = problem.path[0] == "check"
        flag, verb = flag_of(str(problem.path[int(of_check)])), "check" if of_check else "up"
        hint = f"composesim {verb} {flag} {problem.nearest} …" if problem.nearest else f"composesim {verb} --help"
        raise SpecError(f"{flag}: {problem.text}", hint=hint) from None


def _without(node: Any, flags: Mapping[str, Any]) -> Any:
    """What one node has of its own, less what a flag says for all nodes."""
    if not isinstance(node, Mapping):
        return node
    own = {key: value for key, value in node.items() if key not in _OF_EACH_NODE or key not in flags}
    if "env" in own and "env" in flags:
        own["env"] = {name: value for name, value in own["env"].items() if name not in flags["env"]}
    return own


@dataclass(frozen=True, slots=True, kw_only=True)
class _Problem:
    """One wrong value: where it stands, and what is wrong with it in our words."""

    path: KeyPath
    text: str
    nearest: str = ""
    hint: str = ""

    @property
    def with_key(self) -> str:
        """`memory: 'lots' is not a size`."""
        keys = [part for part in self.path if isinstance(part, str)]
        return f"{keys[-1]}: {self.text}" if keys and not self.text.startswith("unknown key") else self.text


def _error_in_file(read: YamlText, problems: list[_Problem]) -> SpecError:
    placed = sorted(((_entry(problem, read), problem) for problem in problems), key=lambda pair: read.line_of(pair[0]))
    path, first = placed[0]
    more = "\n".join(f"and on line {read.line_of(other)}: {problem.with_key}" for other, problem in placed[1:])
    return read.error(path, first.with_key, hint=first.hint, more=more)


def _entry(problem: _Problem, read: YamlText) -> KeyPath:
    """The path of the entry that a problem quotes, where the check was of a whole list or mapping."""
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


def _problems(error: ValidationError) -> list[_Problem]:
    """Every problem once; where `nodes` is a number, nothing about it not being a list, and the other way round."""
    details = error.errors(include_url=False)
    other_kind = [
        detail for detail in details if detail["loc"][:1] == ("nodes",) and detail["type"] in _NOT_OF_THE_KIND
    ]
    written = [detail for detail in details if detail not in other_kind]
    return [_problem(detail) for detail in written or details[:1]]


def _problem(detail: ErrorDetails) -> _Problem:
    path, given = _path(detail["loc"]), detail["input"]
    key = str(path[-1]) if path else ""
    kind, context = detail["type"], detail.get("ctx", {})
    if kind == "extra_forbidden":
        return _unknown_key(path, key, given)
    if kind == "literal_error":
        choices = [choice.strip("'") for choice in context["expected"].replace(" or ", ", ").split(", ")]
        nearest = next(iter(get_close_matches(str(given), choices, n=1)), choices[0])
        text = f"'{given}' is none of {', '.join(choices)}"
        return _Problem(path=path, text=text, nearest=nearest, hint=f"{key}: {nearest}")
    return _Problem(path=path, text=_words(kind, key, given, context, detail["msg"]), hint=_example(kind, key, given))


def _words(kind: str, key: str, given: Any, context: Mapping[str, Any], otherwise: str) -> str:
    shown = "a list" if isinstance(given, list | tuple) else "a mapping" if isinstance(given, dict) else f"'{given}'"
    match kind:
        case "value_error" if not isinstance(given, dict | list) or key in ("env", "mounts", ""):
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
        case "greater_than_equal":
            return f"{shown} is too small: at least {_limit(key, context['ge'])}"
        case "greater_than":
            return f"{shown} is too small: more than {_limit(key, context['gt'])}"
        case "less_than_equal":
            return f"{shown} is too large: at most {_limit(key, context['le'])}"
    return f"{shown}: {otherwise}"


def _example(kind: str, key: str, given: Any) -> str:
    if kind == "tuple_type" and isinstance(given, str):
        return f"{key}: [{', '.join(given.split())}]"
    return f"{key}: {_EXAMPLES[key]}" if kind == "dict_type" and key in _EXAMPLES else ""


def _unknown_key(path: KeyPath, key: str, given: Any) -> _Problem:
    inner = CheckSpec if path[0] == "check" else NodeSpec
    known = [*(inner if len(path) > 1 else ClusterSpec).model_fields]
    nearest = next(iter(get_close_matches(key.replace("-", "_").lower(), known, n=1)), "")
    text = f"unknown key '{key}'" + (f"; did you mean '{nearest}'?" if nearest else f"; there are {', '.join(known)}")
    written = f" {given}" if isinstance(given, str) else ""
    return _Problem(path=path, text=text, nearest=nearest, hint=f"{nearest}:{written}" if nearest else "")


def _path(location: tuple[int | str, ...]) -> KeyPath:
    """Where in the spec: without the name that pydantic gives to one way of writing `nodes`."""
    return (location[0], *location[2:]) if location[:1] == ("nodes",) and len(location) > 1 else location


def _limit(key: str, limit: float) -> str:
    return format_bytes(limit) if key in _SIZES else f"{limit:g}"
