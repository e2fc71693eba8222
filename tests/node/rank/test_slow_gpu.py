"""A GPU that takes a multiple of the time for a step."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.train


def test_a_rank_without_a_gpu_sleeps_after_each_step_until_the_note_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    from compose_sim.node.rank import slow_gpu

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
