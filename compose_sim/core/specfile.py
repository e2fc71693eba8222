"""What does a `composesim.yaml` ask for, and what is asked for once the flags have won over it? Text in, values out.

Every error names where the value stands: file, line and key, or the flag.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from compose_sim.core.quantities import format_bytes
from compose_sim.core.spec import ClusterSpec, NodeSpec
from compose_sim.core.yamltext import Path, YamlText, read_yaml
from compose_sim.errors import SpecError

_FLAGS = {"mounts": "--mount", "module": "-m", "script": "SCRIPT", "args": "ARGS"}  # where the name is not the field's
_PROGRAM = ("script", "module", "args")
_OF_EACH_NODE = ("nproc_per_node", "cpus", "memory")
_SIZES = ("memory", "shm_size")
_EXAMPLES = {"env": "{NAME: value}", "nodes": "{memory: 2g}"}


def parse_spec_text(text: str, source: str, variables: Mapping[str, str]) -> dict[str, Any]:
    """
    The checked values of a spec file, as they were written; `variables` are what `${NAME}` may refer to.

    Raises SpecError naming file, line and key.
    """
    read = read_yaml(text, source, variables)
    try:
        ClusterSpec.model_validate(read.values)
    except ValidationError as error:
        raise _error_in_file(read, _problems(error)) from None
    return read.values


def make_spec(values_of_file: Mapping[str, Any], flags: Mapping[str, Any]) -> ClusterSpec:
    """
    The request of a spec file and of flags together. `flags` holds only those that were given, by field name.

    A flag wins over the file, over what single nodes have of their own too. Environments are merged by name, mounts and
    environment files of the flags come after those of the file, and a script or module named by flag has its own arguments.
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
    for field in ("mounts", "env_file"):
        if field in flags:
            values[field] = [*values_of_file.get(field, ()), *flags[field]]
    try:
        return ClusterSpec.model_validate(values)
    except ValidationError as error:
        problem = _problems(error)[0]
        raise SpecError(problem.text, hint=problem.hint) from None


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
        flag = flag_of(str(problem.path[0]))
        hint = f"composesim up {flag} {problem.nearest} …" if problem.nearest else "composesim up --help"
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

    path: Path
    text: str
    nearest: str = ""
    hint: str = ""


def _error_in_file(read: YamlText, problems: list[_Problem]) -> SpecError:
    problems = sorted((_narrowed(problem, read) for problem in problems), key=lambda problem: read.line_of(problem.path))
    first, *others = problems
    more = "\n".join(f"and on line {read.line_of(other.path)}: {_with_key(other)}" for other in others)
    return read.error(first.path, _with_key(first), hint=first.hint, more=more)


def _with_key(problem: _Problem) -> str:
    keys = [str(part) for part in problem.path if not isinstance(part, int)]
    return f"{keys[-1]}: {problem.text}" if keys and not problem.text.startswith("unknown key") else problem.text


def _narrowed(problem: _Problem, read: YamlText) -> _Problem:
    """The same problem at the entry it quotes, where the check was of a whole list or mapping."""
    value: Any = read.values
    for part in problem.path:
        value = value.get(part) if isinstance(value, dict) else value[int(part)] if isinstance(value, list) else None
    entries: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, dict):
        entries = ((key, key) for key in value)
    elif isinstance(value, list):
        entries = enumerate(value)
    for key, quoted in entries:
        if problem.path and f"'{quoted}'" in problem.text:
            line_path = (*problem.path, key)
            return _Problem(path=line_path, text=problem.text, hint=problem.hint) if isinstance(key, int) else problem_at(problem, line_path)
    return problem
