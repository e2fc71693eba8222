"""A change of torch that raises leaves torch's own function as it is, and is not tried again."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from compose_sim.node.rank.torch_hooks import features, lazy_compiler


def test_a_change_that_raises_switches_its_feature_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "_off", {})
    monkeypatch.setattr(features, "_tell", None)
    monkeypatch.setattr(lazy_compiler, "_COMPILER", "no.such.module")
    tried: list[Any] = []

    def mark(function: Any) -> None:
        tried.append(function)
        raise RuntimeError("of the change")

    monkeypatch.setattr(lazy_compiler, "_mark", mark)
    module: Any = ModuleType("torch._compile")
    module._disable_dynamo = lambda fn=None, recursive=True: ("disabled", fn)
    lazy_compiler._after_compile(module)

    assert [module._disable_dynamo(len), module._disable_dynamo(max)] == [("disabled", len), ("disabled", max)]
    assert tried == [len]
    assert "of the change" in features.why_off("lazy_compiler")
