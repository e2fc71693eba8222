"""The manifest of public trainers is complete, and the page shows the outcome of each."""

from __future__ import annotations

import re

from scripts.public_trainers import __main__ as gallery
from scripts.public_trainers import make_data
from scripts.public_trainers.__main__ import Outcome, Trainer


def test_each_trainer_is_pinned_and_has_a_command_or_a_reason() -> None:
    trainers = gallery.read_manifest()

    assert len({each.id for each in trainers}) == len(trainers) >= 30
    for each in trainers:
        assert re.fullmatch(r"[0-9a-f]{40}", each.commit), each.id
        assert bool(each.command) != bool(each.cannot), each.id
        assert all(callable(getattr(make_data, name, None)) for name in each.data), each.id


def test_the_page_counts_what_can_run() -> None:
    trainers = [
        Trainer("a.py", "team/a", "0" * 40, command="--nodes 2 a.py --lr 1"),
        Trainer("b.py", "team/b", "1" * 40, command="b.py"),
        Trainer("c.py", "team/c", "2" * 40, cannot="needs a GPU"),
    ]
    outcomes = {
        "a.py": Outcome("passed, with a finding", "set-epoch | failed"),
        "b.py": Outcome("failed", "ValueError: boom"),
        "c.py": Outcome("not on a CPU", "needs a GPU"),
    }

    text = gallery.page(trainers, outcomes)

    assert "1 of the 2 public trainers" in text
    assert "| team/a @0000000: a.py | `--nodes 2 …` | passed, with a finding: set-epoch \\| failed |" in text


def test_the_page_shows_the_results_that_are_kept() -> None:
    assert gallery.PAGE.read_text() == gallery.page(gallery.read_manifest(), gallery.read_outcomes())
