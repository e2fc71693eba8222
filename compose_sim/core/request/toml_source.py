"""Read the values of `[tool.composesim]` in pyproject.toml with their lines, as `yaml_source.py` reads YAML."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from typing import Any

from compose_sim.core.request.yaml_source import DEEPEST, KeyPath, YamlText, dotted, error_at, fill_in

TABLE = ("tool", "composesim")
_HEADER = re.compile(r"\s*(\[\[?)\s*([^\[\]]+?)\s*\]\]?\s*(?:#.*)?$")
_KEY = re.compile(r"\s*([A-Za-z0-9_.\"' -]+?)\s*=")


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
