"""No regular expression takes more than linear time, whatever text it meets: lengths of hostile texts grow tenfold."""

from __future__ import annotations

import ast
import importlib
import math
import re
import signal
import time
from collections.abc import Iterator
from re import _constants as codes  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from string import ascii_uppercase
from typing import Any

import pytest

from tests.test_architecture import FILES, PACKAGE

METHODS = {"match", "fullmatch", "search", "sub", "subn", "split", "findall", "finditer"}
SHORT, LONG = 1_500, 15_000
MAX_GROWTH = 50  # linear is 10, quadratic 100
TOO_SHORT_TO_MEASURE_S, TOO_LONG_S = 0.02, 1.0
BAD_ENDS = ("", "\0", "!", "\n\0")


def patterns() -> Iterator[tuple[str, Any, str]]:
    """Yield the place, the pattern and the method of each regular expression of the package."""
    for path in FILES:
        text = path.read_text()
        if "re." not in text:
            continue
        tree = ast.parse(text)
        name = str(path.relative_to(PACKAGE.parent).with_suffix("")).replace("/", ".")
        uses: dict[str, set[str]] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.attr in METHODS:
                uses.setdefault(node.value.id, set()).add(node.attr)
        for node in ast.walk(tree):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args):
                continue
            function, first = node.func, node.args[0]
            is_call_of_re = (
                isinstance(function.value, ast.Name) and function.value.id == "re" and function.attr in METHODS
            )
            if is_call_of_re and isinstance(first, ast.Constant):
                yield f"{name}:{node.lineno}", first.value, function.attr
        if not any(line.startswith(("_", *ascii_uppercase)) and "re.compile(" in line for line in text.splitlines()):
            continue
        module = importlib.import_module(name)
        for variable, value in vars(module).items():
            if isinstance(value, re.Pattern) and f"{variable} " in text.replace(":", " :").replace("=", " ="):
                used = uses.get(variable, {"search"})
                yield f"{name}:{variable}", value, next(iter(used)) if len(used) == 1 else "search"


def sample(tree: Any) -> str:
    """Return a text that a parsed pattern matches, as short as possible."""
    return "".join(_sample_of(code, argument) for code, argument in tree)


def _sample_of(code: Any, argument: Any) -> str:
    if code is codes.LITERAL:
        return chr(argument)
    if code is codes.NOT_LITERAL:
        return "a" if argument != ord("a") else "b"
    if code is codes.ANY:
        return "a"
    if code is codes.IN:
        return _member(argument)
    if code is codes.BRANCH:
        return sample(argument[1][0])
    if code is codes.SUBPATTERN:
        return sample(argument[3])
    if code in (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT):
        return sample(argument[2]) * max(1, argument[0])
    if code is codes.ATOMIC_GROUP:
        return sample(argument)
    return ""


def _member(items: Any) -> str:
    candidates = "a1 _-.:/x0Z\t,=\"'([{}])#$*+<>@!~\n;|&%^\\é"
    negated = items and items[0][0] is codes.NEGATE
    for candidate in candidates:
        found = any(_is_in(ord(candidate), code, value) for code, value in items if code is not codes.NEGATE)
        if found != negated:
            return candidate
    return "a"


_CATEGORIES = {
    codes.CATEGORY_DIGIT: str.isdigit,
    codes.CATEGORY_NOT_DIGIT: lambda character: not character.isdigit(),
    codes.CATEGORY_SPACE: str.isspace,
    codes.CATEGORY_NOT_SPACE: lambda character: not character.isspace(),
    codes.CATEGORY_WORD: lambda character: character.isalnum() or character == "_",
    codes.CATEGORY_NOT_WORD: lambda character: not (character.isalnum() or character == "_"),
}


def _is_in(number: int, code: Any, value: Any) -> bool:
    if code is codes.LITERAL:
        return bool(number == value)
    if code is codes.RANGE:
        return bool(value[0] <= number <= value[1])
    return bool(_CATEGORIES[value](chr(number))) if code is codes.CATEGORY else False


def repeats(tree: Any, before: str = "") -> Iterator[tuple[str, str]]:
    """Yield (prefix, pump) of each part of a pattern that is repeated without a limit."""
    for code, argument in tree:
        if code in (codes.MAX_REPEAT, codes.MIN_REPEAT):
            if argument[1] == codes.MAXREPEAT:
                yield before, sample(argument[2])
            yield from repeats(argument[2], before)
        elif code is codes.SUBPATTERN:
            yield from repeats(argument[3], before)
        elif code is codes.BRANCH:
            for branch in argument[1]:
                yield from repeats(branch, before)
        elif code is codes.ATOMIC_GROUP:
            yield from repeats(argument, before)
        before += _sample_of(code, argument)


def hostile_texts(pattern: Any, length: int) -> Iterator[str]:
    """Yield texts of about this length at which a search with backtracking would take long."""
    tree = parser.parse(pattern.pattern, pattern.flags & ~re.DEBUG)
    whole = sample(tree)
    for prefix, pump in {*repeats(tree), ("", whole), ("", whole[:-1]), ("", whole[: len(whole) // 2])}:
        for unit in {pump, prefix + pump, prefix, pump + "\n", " "} - {""}:
            for end in BAD_ENDS:
                yield prefix + unit * (length // len(unit)) + end


def seconds(pattern: Any, method: str, text: Any) -> float:
    if isinstance(pattern.pattern, bytes):
        text = text.encode("utf-8", "replace")
    run = pattern.sub if method in ("sub", "subn") else getattr(pattern, method)
    arguments = (b"" if isinstance(text, bytes) else "", text) if method in ("sub", "subn") else (text,)
    signal.signal(signal.SIGVTALRM, _too_long)
    signal.setitimer(signal.ITIMER_VIRTUAL, TOO_LONG_S)
    began = time.process_time()
    try:
        found = run(*arguments)
        if method == "finditer":
            for _ in found:
                pass
    except TimeoutError:
        return math.inf
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    return time.process_time() - began


def _too_long(number: int, frame: object) -> None:
    raise TimeoutError


PATTERNS = {place: (pattern, method) for place, pattern, method in patterns()}


@pytest.mark.parametrize("place", PATTERNS)
def test_a_pattern_takes_linear_time(place: str) -> None:
    pattern, method = PATTERNS[place]
    pattern = re.compile(pattern) if isinstance(pattern, str | bytes) else pattern
    is_binary = isinstance(pattern.pattern, bytes)  # parsed as text, which has the same structure
    shown = re.compile(pattern.pattern.decode("latin-1"), pattern.flags & ~re.UNICODE) if is_binary else pattern
    slow = {}
    for short, long in zip(hostile_texts(shown, SHORT), hostile_texts(shown, LONG), strict=True):
        taken = seconds(pattern, method, long)
        if taken > TOO_SHORT_TO_MEASURE_S:
            before = 0.0 if math.isinf(taken) else max(seconds(pattern, method, short) for _ in range(3))
            taken = taken if math.isinf(taken) else min(taken, seconds(pattern, method, long))
            if taken > TOO_SHORT_TO_MEASURE_S and taken > MAX_GROWTH * before:
                slow[long[:40] + "…" + long[-10:]] = (before, taken)

    assert not slow
