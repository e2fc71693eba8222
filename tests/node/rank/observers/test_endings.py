"""A script raised after training only if no step could have followed that line."""

from __future__ import annotations

import linecache
from types import CodeType

import pytest

from compose_sim.node.rank.observers.endings import is_behind

SCRIPT = """\
def main(epochs):
    for epoch in range(epochs):
        train(epoch)
        report(epoch)
    report(None)


def train(epoch):
    for step in range(3):
        backward()
    report(epoch)


main(2)
main(3)
"""


@pytest.fixture(autouse=True)
def codes() -> dict[str, CodeType]:
    linecache.cache["script.py"] = (len(SCRIPT), None, SCRIPT.splitlines(keepends=True), "script.py")
    module = compile(SCRIPT, "script.py", "exec")
    functions = {each.co_name: each for each in module.co_consts if isinstance(each, CodeType)}
    return {"": module, **functions}


@pytest.mark.parametrize(
    ("raised", "behind"),
    [
        ([("", 14), ("main", 5)], True),
        ([("", 14), ("main", 4)], False),  # after an epoch
        ([("", 14), ("main", 3), ("train", 11)], False),  # likewise, one call deeper
        ([("", 14), ("main", 3), ("train", 10)], False),
        ([("", 15), ("main", 2)], True),  # after the first of two trainings
        ([("", 14), ("train", 11)], False),  # not called from the training function
    ],
)
def test_what_is_behind_the_training(codes: dict[str, CodeType], raised: list[tuple[str, int]], behind: bool) -> None:
    trained = [(codes[""], 14), (codes["main"], 3), (codes["train"], 10)]
    assert is_behind(trained, [(codes[name], line) for name, line in raised]) is behind
