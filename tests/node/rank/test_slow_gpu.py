"""A GPU that takes a multiple of the time for a step."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from compose_sim.node.rank import slow_gpu
from compose_sim.node.rank.context import RankContext

pytestmark = pytest.mark.train


@pytest.fixture(scope="module", autouse=True)
def _installed() -> None:
    slow_gpu.install()


@pytest.fixture(autouse=True)
def _in_a_rank(rank: RankContext) -> None: ...


def test_a_rank_without_a_gpu_sleeps_after_each_step_until_the_note_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    now, slept = 100.0, list[float]()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(time, "sleep", slept.append)
    note = tmp_path / "note"
    note.touch()
    optimizer = torch.optim.SGD(torch.nn.Linear(1, 1).parameters())

    slow_gpu.begin(note, 3.0)
    for seconds in (1.0, 0.5):
        now += seconds
        optimizer.step()
    note.unlink()
    now += 1.0
    optimizer.step()
    optimizer.step()

    assert slept == [2.0, 1.0]  # each step took three times as long


def test_a_fault_begins_and_ends_while_torch_calls_its_hooks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent's signal arrives at any line, such as in another hook of the same step."""
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook

    slept = list[float]()
    monkeypatch.setattr(time, "sleep", slept.append)
    note = tmp_path / "note"
    note.touch()
    optimizer = torch.optim.SGD(torch.nn.Linear(1, 1).parameters())
    inside = [lambda: slow_gpu.begin(note, 3.0), note.unlink]

    def happen(*_: Any) -> None:
        if inside:
            inside.pop(0)()

    handles = [register_optimizer_step_post_hook(hook) for hook in (happen, lambda *_: None)]
    for _ in range(3):
        optimizer.step()
    for handle in handles:
        handle.remove()

    assert len(slept) == 1
