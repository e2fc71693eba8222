"""A patch never changes what a script sees of the function that it wraps, whatever the patch itself does."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from compose_sim.node.rank.torch_hooks import features, wrap

calls: list[Any] = []


class Local:
    """Something that a failing function of the script holds."""


@pytest.fixture(autouse=True)
def nothing_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "_off", {})
    monkeypatch.setattr(features, "_tell", None)
    calls.clear()


def patched(original: Callable[..., Any], patch: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function after it was wrapped, by a patch that counts as composesim's own code."""
    owner = SimpleNamespace(function=original)
    patch.__code__ = patch.__code__.replace(co_filename=features.__file__)
    wrap(owner, "function")(patch)
    wrapped: Callable[..., Any] = owner.function
    return wrapped


def returns(f: int = 1) -> int:
    calls.append(f)
    return f + 1


def fails(f: int = 1) -> int:
    calls.append(f)
    raise ValueError("of the function")


def test_a_patch_that_raises_first_leaves_the_call_to_the_function() -> None:
    def patch(original: Any, *arguments: Any) -> Any:
        raise RuntimeError("of the patch")

    assert patched(returns, patch)(1) == 2
    assert calls == [1]
    assert len(features._off) == 1


def test_a_patch_that_raises_afterwards_returns_what_the_function_returned() -> None:
    def patch(original: Any, *arguments: Any) -> Any:
        original(*arguments)
        raise RuntimeError("of the patch")

    assert patched(returns, patch)(1) == 2
    assert calls == [1]


def test_a_function_that_raised_is_not_called_again_if_the_patch_raises_too() -> None:
    def patch(original: Any, *arguments: Any) -> Any:
        try:
            return original(*arguments)
        finally:
            raise RuntimeError("of the patch")

    with pytest.raises(ValueError, match="of the function"):
        patched(fails, patch)(1)
    assert calls == [1]
    assert len(features._off) == 1


def test_an_exception_of_the_function_keeps_nothing_alive() -> None:
    def patch(original: Any, *arguments: Any) -> Any:
        return original(*arguments)

    function = patched(fails, patch)

    def script() -> weakref.ref[Local]:
        held = Local()
        reference = weakref.ref(held)
        try:
            function(1)
        except ValueError:
            return reference
        raise AssertionError

    gc.disable()
    try:
        assert script()() is None
    finally:
        gc.enable()
    assert not features._off


def test_a_wrong_call_is_the_functions_own_error() -> None:
    def patch(original: Any, f: Any) -> Any:
        return original(f)

    with pytest.raises(TypeError, match="returns"):
        patched(returns, patch)(1, 2, 3)
    assert not features._off


def test_a_call_that_only_the_function_accepts_is_made() -> None:
    def patch(original: Any, renamed: Any) -> Any:
        return original(renamed)

    assert patched(returns, patch)(f=5) == 6
    assert calls == [5]
    assert len(features._off) == 1


def test_an_exception_of_the_users_code_passes_through_a_patch() -> None:
    def handler() -> None:
        raise TimeoutError("of the script")

    def patch(original: Any, *arguments: Any) -> Any:
        handler()
        return original(*arguments)

    with pytest.raises(TimeoutError):
        patched(returns, patch)(1)
    assert not features._off
