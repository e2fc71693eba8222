"""Convert frozen dataclasses to JSON values and back, and describe them as a JSON schema.

All three follow the annotations of the fields: scalars, `Literal`, `X | None`, `tuple`, `Mapping[str, X]`, `Any` and other
dataclasses. `Annotated[X, "text"]` gives a field its description in the schema.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from math import isfinite
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

_T = TypeVar("_T")
MAX_NUMBER = 1 << 64  # an integer beyond 10^308 cannot even become a float
_UNIONS = (UnionType, Union)  # `Literal[…] | None` is of the second kind
_SURROGATE = re.compile("[\ud800-\udfff]")  # cannot be printed
_SCALARS: dict[Any, tuple[str, tuple[type, ...]]] = {
    str: ("string", (str,)),
    bool: ("boolean", (bool,)),
    int: ("integer", (int,)),
    float: ("number", (int, float)),
    NoneType: ("null", (NoneType,)),
}


def to_json(value: Any) -> Any:
    """Return a dataclass as dicts and lists, in the order of the fields."""
    if is_dataclass(value):
        return {field.name: to_json(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {key: to_json(each) for key, each in value.items()}
    return [to_json(each) for each in value] if isinstance(value, list | tuple) else value


def from_json(cls: type[_T], values: Any) -> _T:
    """Return the dataclass that a JSON object describes. Unknown keys are ignored; ValueError names a value that does not fit."""
    read: _T = _read(cls, values, "")
    return read


def json_schema(cls: type) -> dict[str, Any]:
    """Return the JSON schema of what `to_json` makes of a dataclass: every field is there, and others may be."""
    definitions: dict[str, Any] = {}
    schema = _object_schema(cls, definitions)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "$defs": dict(sorted(definitions.items())),
    }


@cache
def _types_of(cls: type) -> dict[str, Any]:
    """Return the annotation of each field, with the description."""
    return get_type_hints(cls, include_extras=True)


def _read(kind: Any, value: Any, path: str) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _read(arguments[0], value, path)
    if is_dataclass(kind) and isinstance(value, Mapping):
        return _read_object(kind, value, path)
    if kind is Any or (value is None and NoneType in arguments):
        return value
    if origin in _UNIONS:
        return _read(arguments[0], value, path)
    if origin is tuple and isinstance(value, list | tuple):
        kinds = arguments[:1] * len(value) if arguments[1:] == (...,) else arguments
        if len(kinds) == len(value):
            return tuple(_read(each, value[index], f"{path}[{index}]") for index, each in enumerate(kinds))
    elif origin is Mapping and isinstance(value, Mapping):
        return {str(key): _read(arguments[1], each, f"{path}.{key}") for key, each in value.items()}
    elif value in arguments if origin is Literal else _is_scalar(kind, value):
        return value
    raise ValueError(f"{path.lstrip('.') or 'the value'} is {value!r:.80}")


def _is_scalar(kind: Any, value: Any) -> bool:
    _, classes = _SCALARS.get(kind, ("", ()))
    if not isinstance(value, classes) or (kind is not bool and isinstance(value, bool)):
        return False
    if isinstance(value, str):
        return not _SURROGATE.search(value)
    number: Any = value
    return number is None or (abs(number) <= MAX_NUMBER and isfinite(number))


def _read_object(cls: Any, value: Mapping[str, Any], path: str) -> Any:
    needed = {field.name for field in fields(cls) if field.default is MISSING and field.default_factory is MISSING}
    missing = sorted(needed - value.keys())
    if missing:
        raise ValueError(f"{f'{path}.{missing[0]}'.lstrip('.')} is missing")
    known = _types_of(cls)
    return cls(**{name: _read(kind, value[name], f"{path}.{name}") for name, kind in known.items() if name in value})


def _schema_of(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return {**_schema_of(arguments[0], definitions), "description": arguments[1]}
    if is_dataclass(kind):
        name = kind.__name__  # type: ignore[union-attr]
        if name not in definitions:
            definitions[name] = _object_schema(kind, definitions)
        return {"$ref": f"#/$defs/{name}"}
    if origin in _UNIONS:
        return {"anyOf": [_schema_of(each, definitions) for each in arguments]}
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin is tuple and arguments[1:] != (...,):
        items = [_schema_of(each, definitions) for each in arguments]
        return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}
    if origin is tuple:
        return {"type": "array", "items": _schema_of(arguments[0], definitions)}
    if origin is Mapping:
        return {"type": "object", "additionalProperties": _schema_of(arguments[1], definitions)}
    return {} if kind is Any else {"type": _SCALARS[kind][0]}


def _object_schema(cls: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    properties = {name: _schema_of(kind, definitions) for name, kind in _types_of(cls).items()}
    return {"type": "object", "description": cls.__doc__, "properties": properties, "required": list(properties)}
