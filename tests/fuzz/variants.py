"""Vary inputs: hundreds of times cheaper than making new ones, so that millions of cases can be tried.

A variant has the types of the original: texts and bytes are changed in a few places, lists and objects in one element.
"""

from __future__ import annotations

import math
from random import Random
from typing import Any

_TOKENS = [
    *(
        "",
        "0",
        "-1",
        "1e999",
        "NaN",
        "null",
        "true",
        "{}",
        "[]",
        "[[[[",
        '"',
        "\\",
        "\n",
        "\r",
        "\0",
        "\x1b[2J",
        "\ud800",
    ),
    *(
        ",",
        ":",
        "'",
        "9" * 400,
        "../",
        "é",
        "\u2028",
        "${A}",
        "!!python/object:x",
        "&a",
        "*a",
        "::error::",
        "%s",
        "node-1",
    ),
]
_BYTES = [token.encode("utf-8", "replace") for token in _TOKENS] + [b"\xff\xfe", b"\r\n\r\n", b" " * 300]
_NUMBERS = [0, -1, 1, 2, 3, 1 << 31, 1 << 63, -(1 << 63), 1 << 70, 0.5, 1e308, -0.0, math.inf, math.nan]
_OTHERS: list[Any] = [None, True, False, "", "x", 0, -1, 1.5, [], {}, ["x"], {"a": 1}, "node-1", "9" * 400]


def vary(value: Any, random: Random) -> Any:
    """Return a changed copy of a value of the same type; of a tuple, numbers and flags stay."""
    if isinstance(value, str):
        return _cut(value, _TOKENS, random)
    if isinstance(value, bytes):
        return _cut(value, _BYTES, random)
    if isinstance(value, tuple):
        return tuple(each if isinstance(each, int | float) else vary(each, random) for each in value)
    if isinstance(value, list):
        return _vary_list(value, random)
    if isinstance(value, dict) and value:
        return _vary_object(value, random)
    if isinstance(value, bool):
        return not value
    return random.choice(_NUMBERS) if isinstance(value, int | float) else value


def _cut(text: Any, tokens: list[Any], random: Random) -> Any:
    """Replace a few short parts by tokens, or by other parts of the text."""
    for _ in range(random.randrange(1, 4)):
        begin = random.randrange(len(text) + 1)
        end = begin + random.choice((0, 0, 1, 1, 2, 8))
        if random.random() < 0.3:
            other = random.randrange(len(text) + 1)
            inserted = text[other : other + random.randrange(1, 12)]
        else:
            inserted = random.choice(tokens)
        text = text[:begin] + inserted + text[end:]
    return text


def _vary_list(values: list[Any], random: Random) -> list[Any]:
    values = list(values)
    if not values:
        return values
    at, how = random.randrange(len(values)), random.random()
    if how < 0.15:
        del values[at]
    elif how < 0.3:
        values.insert(at, random.choice(values))
    elif how < 0.4:
        random.shuffle(values)
    else:
        values[at] = vary(values[at], random)
    return values


def _vary_object(values: dict[Any, Any], random: Random) -> dict[Any, Any]:
    values, key, how = dict(values), random.choice(list(values)), random.random()
    if how < 0.1:
        del values[key]
    elif how < 0.2 and isinstance(key, str):
        values[vary(key, random)] = values.pop(key)
    elif how < 0.35:
        values[key] = random.choice(_OTHERS)
    else:
        values[key] = vary(values[key], random)
    return values
