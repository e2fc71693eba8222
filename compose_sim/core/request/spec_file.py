"""Read a spec file and merge it with flags, which take precedence.

A spec file is a `composesim.yaml`, or a pyproject.toml with a table `[tool.composesim]`. Every error names the file, line and key
of the value, or the flag.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from compose_sim.core.request.flags import options_of
from compose_sim.core.request.spec import CheckSpec, ClusterSpec, NodeSpec
from compose_sim.errors import SpecError

if TYPE_CHECKING:  # a request without a spec file and without mistakes does not wait for the YAML parser
    from compose_sim.core.request.validation_errors import Problem
    from compose_sim.core.request.yaml_source import KeyPath

_PROGRAM = ("script", "module", "args")


def parse_spec_text(text: str, source: str, variables: Mapping[str, str]) -> dict[str, Any]:
    """
    Return the checked values of a spec file, as they were written. `variables` are those that `${NAME}` can refer to.

    Raises SpecError that names file, line and key.
    """
    if not text:
        return {}
    from compose_sim.core.request.validation_errors import error_in_file
    from compose_sim.core.request.yaml_source import read_toml, read_yaml

    read = (read_toml if source.endswith(".toml") else read_yaml)(text, source, variables)
    try:
        ClusterSpec.model_validate(read.values)
    except ValidationError as error:
        raise error_in_file(read, _problems(error)) from None
    return read.values


def make_spec(values_of_file: Mapping[str, Any], flags: Mapping[str, Any]) -> ClusterSpec:
    """
    Return the request of a spec file and of the flags that were given, by key.

    A flag wins over the file and over the settings of single nodes. Environments are merged by name. Mounts and environment
    files of flags come after those of the file. A script or module on the command line replaces the file's arguments too.
    Raises SpecError that names the flag.
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


def first_problem(values: Mapping[str, Any]) -> Problem | None:
    """Return what is wrong with the values of a spec that is no file of the user, or None."""
    try:
        ClusterSpec.model_validate(dict(values))
    except ValidationError as error:
        return _problems(error)[0]
    return None


def keys_at(path: KeyPath) -> list[str]:
    """Return the keys that are known at this path of a spec."""
    inner = CheckSpec if path[0] == "check" else NodeSpec
    fields = (inner if len(path) > 1 else ClusterSpec).model_fields
    return [field.alias or name for name, field in fields.items()]


def _problems(error: ValidationError) -> list[Problem]:
    from compose_sim.core.request.validation_errors import problems_of

    return problems_of(error, keys_at)


def _merged_check(of_file: Mapping[str, Any], flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of both. A check that `--only` names runs even if the file skips it."""
    merged = {**of_file, **flags}
    if "only" in flags and "skip" not in flags and "skip" in of_file:
        asked = CheckSpec(only=flags["only"]).only
        merged["skip"] = [name for name in CheckSpec(skip=of_file["skip"]).skip if name not in asked]
    return merged


def _check_flags(flags: Mapping[str, Any]) -> None:
    try:
        ClusterSpec.model_validate(dict(flags))
    except ValidationError as error:
        problem = _problems(error)[0]
        if not problem.path:
            raise SpecError(problem.text, hint="composesim up [SCRIPT | -m MODULE] ARGS…") from None
        verb, spec, path = (
            ("check", CheckSpec, problem.path[1:]) if problem.path[0] == "check" else ("up", ClusterSpec, problem.path)
        )
        flag = next(option.argument for option in options_of(spec) if option.key == path[0])
        hint = f"composesim {verb} {flag} {problem.nearest} …" if problem.nearest else f"composesim {verb} --help"
        raise SpecError(f"{flag}: {problem.text}", hint=hint) from None
    except UnicodeEncodeError as error:  # pydantic cannot quote it
        raise SpecError(f"{error.object!a} is not valid UTF-8", hint="composesim up --help") from None


def _without(node: Any, flags: Mapping[str, Any]) -> Any:
    """Return the settings of one node without those that a flag sets for all nodes."""
    if not isinstance(node, Mapping):
        return node
    own = {key: value for key, value in node.items() if key == "env" or key not in flags}
    if "env" in own and "env" in flags:
        own["env"] = {name: value for name, value in own["env"].items() if name not in flags["env"]}
    return own
