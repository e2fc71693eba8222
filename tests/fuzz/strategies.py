"""Inputs for the fuzzer: JSON values and lines of text, of which most are nearly right."""

from __future__ import annotations

import atexit
import copy
import functools
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Collection
from pathlib import Path
from random import Random
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.variants import vary

MORE = int(os.environ.get("FUZZ_EXAMPLES", "0"))
SECONDS = float(os.environ.get("FUZZ_SECONDS", "0"))
COUNTS = os.environ.get("FUZZ_COUNTS", "")
ODD = [
    0,
    -1,
    1 << 70,
    10**400,
    1e308,
    float("nan"),
    float("inf"),
    "",
    "\ud800",
    "\0",
    "\x1b[2J",
    "\n",
    "9" * 5000,
    "../x",
    [],
    {},
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(ODD),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
DEEP = st.integers(1, 1000).map(lambda depth: "[" * depth + "]" * depth)


def fuzz(**strategies: st.SearchStrategy[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """
    Run a test with many inputs: always the same ones, unless FUZZ_EXAMPLES asks for more.

    With FUZZ_SECONDS, variants of each input are tried too, until that time is used up. FUZZ_COUNTS names a file to which each
    test then appends how many cases it tried.
    """
    fixtures = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large]
    wanted = settings(max_examples=MORE or 200, derandomize=not MORE, suppress_health_check=fixtures, database=None)
    return lambda test: wanted(given(**strategies)(_with_variants(test, strategies) if SECONDS else test))


def _with_variants(test: Callable[..., None], names: Collection[str]) -> Callable[..., None]:
    """Return a test that also tries variants of its input, for its share of FUZZ_SECONDS."""
    random, tried = Random(), Counter[str]()
    if COUNTS:
        atexit.register(_note, test.__name__, tried)

    @functools.wraps(test)
    def with_variants(**arguments: Any) -> None:
        end = time.monotonic() + SECONDS / (MORE or 200)
        given_values = {name: arguments[name] for name in names if not _is_choice(test, name)}
        case = arguments
        while True:
            tried["cases"] += 1
            try:
                test(**case)
            except Exception as error:
                raise AssertionError(f"{test.__name__} failed with {case!r:.20000}") from error
            if time.monotonic() > end:
                return
            changed = random.choice(list(given_values))
            # Most variants change the original, and some change the last variant again.
            values = case if random.random() < 0.4 else arguments
            case = {**values, changed: vary(values[changed], random)}

    return with_variants


def _is_choice(test: Callable[..., None], name: str) -> bool:
    """Return whether a parameter takes a few values only, which its type says."""
    return "Literal" in str(test.__annotations__[name])


def _note(name: str, tried: Counter[str]) -> None:
    if tried:
        with Path(COUNTS).open("a") as file:
            file.write(json.dumps({"test": name, **tried}) + "\n")


def damaged(*originals: Any) -> st.SearchStrategy[Any]:
    """One of these JSON values, with up to three of the values in it replaced or deleted."""

    @st.composite
    def make(draw: st.DrawFn) -> Any:
        value = copy.deepcopy(draw(st.sampled_from(originals)))
        for _ in range(draw(st.integers(0, 3))):
            inner = value
            while isinstance(inner, dict | list) and inner:
                key = draw(st.sampled_from(sorted(inner) if isinstance(inner, dict) else range(len(inner))))
                below = inner[key]
                if not (isinstance(below, dict | list) and below) or draw(st.integers(0, 3)) == 0:
                    if isinstance(inner, dict) and draw(st.integers(0, 4)) == 0:
                        del inner[key]
                    else:
                        inner[key] = draw(JSON)
                    break
                inner = below
        return value

    return make()


def lines_of(*originals: Any) -> st.SearchStrategy[str]:
    """A line that holds one of these JSON values, damaged as a value or as text; or any text."""
    right = damaged(*originals).map(json.dumps)
    torn = st.tuples(right, st.integers(0, 200)).map(lambda pair: pair[0][: pair[1]])
    return right | torn | st.text(max_size=60) | DEEP
