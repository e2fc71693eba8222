"""A rank in the process of the test."""

from __future__ import annotations

import pytest

from compose_sim.node.rank import context
from compose_sim.node.rank.observations import Observations
from compose_sim.node.shared.event_log import EventLog
from compose_sim.node.shared.progress_page import ProgressPage


@pytest.fixture
def rank(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> context.RankContext:
    """Make this process a rank until the test ends."""
    folder = tmp_path_factory.mktemp("rank")
    (folder / "observations").mkdir()
    names = (folder, "node-0", 0, 0)
    made = context.RankContext(EventLog(folder, "run", "node-0"), Observations(*names), ProgressPage(*names))
    monkeypatch.setattr(context, "_context", made)
    return made
