"""A point wraps a function once: subscribers see each call, and never change what a script sees of it unless they mean to."""

from __future__ import annotations

import gc
import subprocess
import sys
import warnings
import weakref
from collections.abc import Callable, Iterator
from inspect import signature
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import pytest

from compose_sim.node.rank.context import RankContext
from compose_sim.node.rank.emulate.collectives import CHECKED
from compose_sim.node.rank.torch_hooks import features, points
from compose_sim.node.rank.torch_hooks.points import Point, TorchCall
from tests.node.harness import Cluster

calls: list[Any] = []


def test_each_collective_of_this_torch_is_observed_and_emulated() -> None:
    """A new release adds collectives: those with an asynchronous form and a group."""
    from torch.distributed import distributed_c10d

    functions = {
        name: each for name, each in vars(distributed_c10d).items() if type(each) is FunctionType and name[0] != "_"
    }
    parameters = {name: signature(each).parameters for name, each in functions.items()}
    collectives = {name for name, found in parameters.items() if {"async_op", "group"} <= found.keys()}

    assert "all_reduce" in collectives
    assert collectives - {"barrier"} <= points.OWN.keys()
    assert collectives - {"barrier"} <= {*CHECKED.split()}


class Local:
    """An object that a failing function of the script holds."""


@pytest.fixture(autouse=True)
def _in_a_rank(monkeypatch: pytest.MonkeyPatch, rank: RankContext) -> None:
    """Let no feature be off."""
    monkeypatch.setattr(features, "_off", {})
    monkeypatch.setattr(features, "_tell", None)
    calls.clear()


def returns(first: int = 1, second: int = 2) -> int:
    calls.append((first, second))
    return first + second


def fails(first: int = 1) -> int:
    calls.append(first)
    raise ValueError("of the function")


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module with a function that returns, and one that raises."""
    made = ModuleType("torch_of_this_test")
    vars(made).update(returns=returns, fails=fails)
    monkeypatch.setitem(sys.modules, made.__name__, made)
    return made


def follow(name: str, *subscribers: Callable[..., Any]) -> None:
    """Subscribe functions, which count as features of their own names."""
    point = Point("torch_of_this_test", name)
    for each in subscribers:
        each.__module__ = f"compose_sim.node.rank.observers.{each.__name__}"
        point.subscribe(each)


def raises_first(_: RankContext, __: TorchCall) -> None:
    raise RuntimeError("of a subscriber")


def raises_afterwards(_: RankContext, __: TorchCall) -> Iterator[None]:
    yield
    raise RuntimeError("of a subscriber")


def raises_either_way(_: RankContext, __: TorchCall) -> Iterator[None]:
    try:
        yield
    finally:
        raise RuntimeError("of a subscriber")


def listens(_: RankContext, call: TorchCall) -> Any:
    calls.append("before")
    try:
        result = yield
        calls.append(result)
    finally:
        calls.append(str(call.error))


def test_subscribers_are_called_around_the_function_as_if_each_wrapped_it(module: Any) -> None:
    def inner(_: RankContext, __: TorchCall) -> Iterator[None]:
        calls.append("inner before")
        yield
        calls.append("inner after")

    follow("returns", inner, listens)

    assert module.returns(3) == 5
    assert calls == ["before", "inner before", (3, 2), "inner after", 5, "None"]


@pytest.mark.parametrize("subscriber", [raises_first, raises_afterwards, raises_either_way])
def test_a_subscriber_that_raises_is_switched_off_alone(module: Any, subscriber: Callable[..., Any]) -> None:
    follow("returns", subscriber, listens)

    assert module.returns(1) == 3
    assert list(features._off) == [subscriber.__name__]
    assert module.returns(2) == 4
    assert calls == ["before", (1, 2), 3, "None", "before", (2, 2), 4, "None"]


def test_an_exception_of_the_function_reaches_the_script_even_if_a_subscriber_raises(module: Any) -> None:
    follow("fails", raises_either_way, listens)

    with pytest.raises(ValueError, match="of the function"):
        module.fails(1)
    assert calls == ["before", 1, "of the function"]
    assert list(features._off) == ["raises_either_way"]


def test_an_exception_of_the_function_keeps_nothing_alive(module: Any) -> None:
    follow("fails", listens)

    def script() -> weakref.ref[Local]:
        held = Local()
        reference = weakref.ref(held)
        try:
            module.fails(1)
        except ValueError:
            return reference
        raise AssertionError

    gc.disable()
    try:
        assert script()() is None
    finally:
        gc.enable()


def test_a_subscriber_may_change_what_is_given_and_answer(module: Any) -> None:
    def doubles(_: RankContext, call: TorchCall) -> None:
        call.replace("first", 2 * call.value("first"))
        call.replace("second", 10)

    def answers(_: RankContext, call: TorchCall) -> None:
        if call.value("first") == 0:
            call.answer("nothing")

    follow("returns", doubles, answers)

    assert [module.returns(3), module.returns(first=4), module.returns(0)] == [16, 18, "nothing"]
    assert calls == [(6, 10), (8, 10)]


def test_a_child_of_the_rank_is_followed_only_if_a_subscriber_wants_it(
    module: Any, rank: RankContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    point = Point("torch_of_this_test", "returns")
    point.subscribe(lambda *_: calls.append("rank"))
    point.subscribe(lambda *_: calls.append("any"), in_children=True)
    module.returns()
    monkeypatch.setattr(rank, "process", 0)
    module.returns()

    assert calls == ["any", "rank", (1, 2), "any", (1, 2)]


def test_a_function_that_is_missing_switches_off_its_subscribers(module: Any) -> None:
    follow("renamed", listens)

    assert "torch_of_this_test.renamed is missing" in features.why_off("listens")


def test_an_optional_function_may_be_missing(module: Any) -> None:
    Point("torch_of_this_test", "renamed", optional=True).subscribe(listens)

    assert not hasattr(module, "renamed")
    assert not features._off


def test_a_warning_names_the_line_that_called_the_function(module: Any) -> None:
    def deprecated() -> None:
        warnings.warn("old", DeprecationWarning, stacklevel=2)

    module.deprecated = deprecated
    follow("deprecated", listens)

    with pytest.warns(DeprecationWarning, match="old") as found:
        module.deprecated()
    assert found[0].filename == __file__


SCRIPT = """
import warnings
warnings.simplefilter("always")
import torch, torch.distributed as dist

def show(message, category, filename, lineno, *rest):
    if "torch_hooks" in filename or filename.endswith(("script.py", "<string>")):
        print("WARNED", lineno, category.__name__, str(message)[:60], flush=True)

warnings.showwarning = show
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
tensor = torch.ones(1)
try:
    dist._reduce_scatter_base(tensor, tensor)
except RuntimeError:  # not every version of gloo has it
    pass
dist.all_reduce(tensor, op=dist.reduce_op.SUM)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1), check_reduction=True)
torch.autograd.backward(model(tensor), grad_variables=torch.ones(1))
dist.destroy_process_group()
"""


@pytest.mark.train
def test_warnings_of_torch_name_the_lines_that_they_name_without_composesim(
    cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    run = cluster(SCRIPT, launcher="torchrun").start(1)
    assert run.exit_codes()["node-0"] == 0, run.log(0)
    alone = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, cwd=tmp_path)
    seen, expected = (
        [line[line.index("WARNED") :] for line in text.splitlines() if "WARNED" in line]
        for text in (run.log(0), alone.stdout)
    )
    assert len(expected) >= 3  # at lines with wrapped functions
    assert seen == expected
