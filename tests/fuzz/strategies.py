"""Inputs for the fuzzer: JSON values and lines of text, of which most are nearly right."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

MORE = int(os.environ.get("FUZZ_EXAMPLES", "0"))
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
    """Run a test with many inputs: always the same ones, unless FUZZ_EXAMPLES asks for more."""
    fixtures = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large]
    wanted = settings(
        max_examples=MORE or 200, derandomize=not MORE, deadline=None, suppress_health_check=fixtures, database=None
    )
    return lambda test: wanted(given(**strategies)(test))


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
