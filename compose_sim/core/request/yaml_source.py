"""Read the values of a YAML text, or of a table in pyproject.toml, with their lines.

In YAML, scalars stay text, and `${NAME}` is filled in.
A key that is given twice and a variable that is not set are errors. An empty scalar means "not given".
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from compose_sim.errors import SpecError

KeyPath = tuple[str | int, ...]  # ("nodes", 1, "memory"): keys and list indexes from the top

_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_REFERENCE = re.compile(
    rf"\$(?:(?P<dollar>\$)|\{{(?P<name>{_NAME})(?::-(?P<default>[^}}]*))?\}}|(?P<other>\{{[^}}]*\}}?|{_NAME}|.|$))",
    re.DOTALL,
)
DEEPEST = 8  # a spec has three levels; an alias that contains itself has no end
_DEEPEST_OF_OTHERS = 32  # a pod in a TrainJob's runtime has about 15
# With aliases of aliases, a small text can expand to any size.
_MAX_VALUES, _MAX_CHARACTERS = 100_000, 16 << 20
_ABSENT = object()


@dataclass(frozen=True, slots=True)
class YamlText:
    """The values of a text, and the line of each, from 1."""

    source: str
    values: dict[str, Any]
    lines: Mapping[KeyPath, int]
    text: str = field(repr=False, default="")
    last_line: int = 0

    def line_of(self, path: KeyPath) -> int:
        """Return the line of a value, or of the innermost value around it that has one."""
        return self.lines[path] if path in self.lines or not path else self.line_of(path[:-1])

    def error(self, path: KeyPath, problem: str, *, hint: str = "", more: str = "") -> SpecError:
        """Return a SpecError about the value at this path, with the line as evidence. A hint is YAML."""
        key, is_entry, value = hint.partition(": ")
        if self.source.endswith(".toml") and is_entry:
            hint = f"{key} = {_toml(yaml.safe_load(value))}"
        return error_at(self.source, self.text, self.line_of(path), problem, hint=hint, more=more)


def _toml(value: Any) -> str:
    """Return a value as TOML."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} = {_toml(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value) if isinstance(value, str | bool | int | float) else '""'


def read_yaml(text: str, source: str, variables: Mapping[str, str]) -> YamlText:
    """
    Return the values of a YAML mapping. `source` is the name of the file, and `variables` are those that `${NAME}` can refer to.

    Raises SpecError with file and line if the text is not YAML, or not a mapping.
    """
    roots = _compose(text, source, yaml.BaseLoader)
    reader = _Reader(source=source, text=text, variables=variables, lines={(): 1})
    if len(roots) > 1:
        raise reader.error(roots[1], "a spec is one document, and another one starts here")
    root = next(iter(roots), None)
    if root is None or (isinstance(root, yaml.ScalarNode) and not root.value):
        return YamlText(source, {}, reader.lines, text)
    if not isinstance(root, yaml.MappingNode):
        raise reader.error(root, "a spec is a mapping such as 'nodes: 2'")
    return YamlText(source, reader.mapping(root, ()), reader.lines, text)


def read_documents(text: str, source: str) -> list[YamlText]:
    """
    Return every YAML mapping of a file that another program wrote: nothing is filled in, and null means "not given".

    Raises SpecError with file and line if the text is not YAML.
    """
    found = []
    for root in _compose(text, source, yaml.SafeLoader):
        if isinstance(root, yaml.MappingNode):
            reader = _Reader(source=source, text=text, variables=None, lines={(): root.start_mark.line + 1})
            found.append(YamlText(source, reader.mapping(root, ()), reader.lines, text, root.end_mark.line + 1))
    return found


def _compose(text: str, source: str, loader: type[yaml.BaseLoader] | type[yaml.SafeLoader]) -> list[yaml.Node]:
    """Return the root of every document in a text."""
    try:
        return [*yaml.compose_all(text, Loader=loader)]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = f"not valid YAML: {error.problem or error.context}"
        raise error_at(
            source,
            text,
            mark.line + 1 if mark else 1,
            problem,
            hint=_yaml_hint(problem, _line(text, mark.line) if mark else ""),
        ) from None
    except yaml.reader.ReaderError as error:
        line = text[: error.position].count("\n") + 1
        raise error_at(
            source, text, line, f"not valid YAML: character #x{error.character:02x} is not allowed"
        ) from None
    except RecursionError:
        raise error_at(source, text, 1, "not a spec: it is nested too deeply") from None


@dataclass(slots=True)
class _Reader:
    """Walks the nodes of a YAML text and records their lines. Without variables, the text is of another program."""

    source: str
    text: str
    variables: Mapping[str, str] | None
    lines: dict[KeyPath, int]
    characters: int = 0  # of the values so far
    merged: int = 0  # keys so far that `<<` merges, as often as it does

    def error(self, node: yaml.Node, problem: str, *, hint: str = "") -> SpecError:
        return error_at(self.source, self.text, node.start_mark.line + 1, problem, hint=hint)

    def mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        values: dict[str, Any] = {}
        seen: dict[str, int] = {}
        for key_node, value_node in self.pairs(node):
            if not isinstance(key_node, yaml.ScalarNode):
                raise self.error(key_node, "a key must be a word")
            if _has_surrogate(key_node.value):
                raise self.error(key_node, "half of a surrogate pair in a key is not a character")
            key, line = key_node.value, key_node.start_mark.line + 1
            if key in seen:
                raise self.error(key_node, f"key '{key}' is given twice, first on line {seen[key]}")
            seen[key] = line
            inner = (*path, key)
            self.lines[inner] = line
            value = self.value(value_node, inner)
            if value is not _ABSENT:
                values[key] = value
            elif path[-1:] == ("env",) and self.variables is not None:
                raise self.error(key_node, f"{dotted(inner)} has no value", hint=f'{key}: ""')
        return values

    def pairs(self, node: yaml.MappingNode) -> list[tuple[yaml.Node, yaml.Node]]:
        """Return the keys and values of a mapping, with those that `<<` merges into it; its own come first."""
        found: list[tuple[yaml.Node, yaml.Node]] = []
        merged: list[yaml.MappingNode] = []
        for key, value in node.value:
            if self.variables is None and key.tag == "tag:yaml.org,2002:merge":
                parts = value.value if isinstance(value, yaml.SequenceNode) else [value]
                merged += [part for part in parts if isinstance(part, yaml.MappingNode) and part is not node]
            else:
                found.append((key, value))
        if not merged:
            return found
        known = {key.value for key, _ in found if isinstance(key, yaml.ScalarNode)}
        self.merged += sum(len(part.value) for part in merged)
        if self.merged > _MAX_VALUES:
            raise self.error(node, f"the text expands to more than {_MAX_VALUES:,} values")
        inherited = [pair for part in merged for pair in part.value if isinstance(pair[0], yaml.ScalarNode)]
        return [*found, *{pair[0].value: pair for pair in reversed(inherited) if pair[0].value not in known}.values()]

    def sequence(self, node: yaml.SequenceNode, path: KeyPath) -> list[Any]:
        values = []
        for index, item in enumerate(node.value):
            inner = (*path, index)
            self.lines[inner] = item.start_mark.line + 1
            value = self.value(item, inner)
            if value is _ABSENT and self.variables is None:
                value = ""
            elif value is _ABSENT:
                raise self.error(item, f"{dotted(inner)} is empty", hint="{}" if path == ("nodes",) else '""')
            values.append(value)
        return values

    def value(self, node: yaml.Node, path: KeyPath) -> Any:
        if len(path) > (DEEPEST if self.variables is not None else _DEEPEST_OF_OTHERS):
            raise self.error(node, f"{dotted(path[:2])} is nested too deeply")
        if len(self.lines) > _MAX_VALUES:
            raise self.error(node, f"the text expands to more than {_MAX_VALUES:,} values")
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return self.sequence(node, path)
        assert isinstance(node, yaml.ScalarNode)
        self.characters += len(node.value)
        if self.characters > _MAX_CHARACTERS:
            raise self.error(node, f"the text expands to more than {_MAX_CHARACTERS >> 20} MiB")
        if _has_surrogate(node.value):
            raise self.error(node, f"{dotted(path)}: half of a surrogate pair is not a character")
        if self.variables is None:
            return _ABSENT if node.tag == "tag:yaml.org,2002:null" else node.value
        text = fill_in(node.value, path, self.variables, lambda problem, hint: self.error(node, problem, hint=hint))
        return _ABSENT if not text and node.style is None else text


def _has_surrogate(text: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in text)


def fill_in(text: str, path: KeyPath, variables: Mapping[str, str], fail: Callable[[str, str], SpecError]) -> str:
    """Return the text with every `${NAME}` filled in; `fail` makes an error from a problem and a hint."""

    def resolve(match: re.Match[str]) -> str:
        if match["dollar"]:
            return "$"
        if match["other"] is not None:
            raise fail(f"{dotted(path)}: '{match[0]}' is not ${{NAME}} or ${{NAME:-default}}", _dollars(match))
        name, default = match["name"], match["default"]
        value = variables.get(name)
        if default is not None:
            return value or str(default)
        if value is None:
            hint = f"{name}=… composesim up, or ${{{name}:-default}} in the file"
            raise fail(f"{dotted(path)}: the variable '{name}' is not set", hint)
        return value

    return _REFERENCE.sub(resolve, text)


def _dollars(match: re.Match[str]) -> str:
    name = re.fullmatch(_NAME, match["other"])
    return f"${{{name[0]}}} for a variable, $${name[0]} for the text" if name else "$$ for a dollar sign"


def dotted(path: Sequence[str | int]) -> str:
    """Return a path as `nodes[1].memory`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")


def error_at(source: str, text: str, line: int, problem: str, *, hint: str = "", more: str = "") -> SpecError:
    lines = text.splitlines()
    shown = f"{line} | {lines[line - 1].rstrip()[:160]}" if 0 < line <= len(lines) else ""
    evidence = "\n".join(part for part in (shown, more) if part)
    return SpecError(f"{source}, line {line}: {problem}", evidence=evidence, hint=hint)


def _line(text: str, number: int) -> str:
    return "".join(text.splitlines()[number : number + 1])


def _yaml_hint(problem: str, line: str) -> str:
    unquoted = re.search(r"(?<![\"'])(\$\{[^}]{0,99}\})", line)
    if unquoted and "got '{'" in problem:
        return f'"{unquoted[1]}" with quotes, inside braces or brackets'
    return "indent with spaces, not tabs" if "'\\t'" in problem else ""


TABLE = ("tool", "composesim")
_HEADER = re.compile(r"\s*(\[\[?)([^\[\]]+)\]\]?\s*(?:#.*)?$")
_KEY = re.compile(r"([A-Za-z0-9_.\"' \t-]+)=")


def read_toml(text: str, source: str, variables: Mapping[str, str]) -> YamlText:
    """
    Return the values of the table `[tool.composesim]`, empty if there is none. Scalars are text with `${NAME}` filled in.

    Raises SpecError with file and line if the text is not TOML, or the entry is not a table.
    """
    try:
        table: Any = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        place = re.search(r"line (\d+)", str(error))
        raise error_at(source, text, int(place[1]) if place else 1, f"not valid TOML: {error}") from None
    except (ValueError, RecursionError) as error:  # an integer of thousands of digits, or thousands of brackets
        raise error_at(source, text, 1, f"not valid TOML: {error}") from None
    for key in TABLE:
        table = table.get(key, {}) if isinstance(table, dict) else {}
    read = YamlText(source, {}, _lines(text), text)
    if not isinstance(table, dict):
        raise read.error((), "[tool.composesim] is not a table such as nodes = 2")
    return YamlText(source, {key: _value(table[key], (key,), read, variables) for key in table}, read.lines, text)


def _value(value: Any, path: KeyPath, read: YamlText, variables: Mapping[str, str]) -> Any:
    if len(path) > DEEPEST:
        raise read.error(path[:1], f"{dotted(path[:2])} is nested too deeply")
    if isinstance(value, dict):
        return {key: _value(inner, (*path, key), read, variables) for key, inner in value.items()}
    if isinstance(value, list):
        return [_value(inner, (*path, index), read, variables) for index, inner in enumerate(value)]
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return fill_in(value, path, variables, lambda problem, hint: read.error(path, problem, hint=hint))
    return str(value)


def _lines(text: str) -> dict[KeyPath, int]:
    """Return the line of each header and key of the table, which tomllib does not provide."""
    lines: dict[KeyPath, int] = {}
    counts: dict[KeyPath, int] = {}
    table: KeyPath | None = None
    for number, line in enumerate(text.splitlines(), 1):
        header, key = _HEADER.match(line), _KEY.match(line)
        if header:
            table = _inside(_keys(header[2]))
            if table is not None and header[1] == "[[":
                counts[table] = counts.get(table, -1) + 1
                table = (*table, counts[table])
        if table is not None and (header or key):
            lines.setdefault((*table, *(_keys(key[1]) if key and not header else ())), number)
    return {(): min(lines.values(), default=1), **lines}


def _inside(keys: tuple[str, ...]) -> KeyPath | None:
    """Return the path within our table, or None for another table."""
    return keys[len(TABLE) :] if keys[: len(TABLE)] == TABLE else None


def _keys(dotted: str) -> tuple[str, ...]:
    return tuple(part.strip().strip("\"'") for part in dotted.split("."))
