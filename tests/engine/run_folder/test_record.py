"""A run that is read from its folder alone."""

from __future__ import annotations

import shutil
from pathlib import Path

from compose_sim.core.events.events import Event
from compose_sim.engine.run_folder.folder import RunFolder
from compose_sim.engine.run_folder.record import read_state
from compose_sim.node.shared.progress_page import ProgressPage
from tests.builders import a_plan


def begun(generation: int) -> str:
    """What the master reports about a round of two nodes."""
    data = {"world_size": 2, "nodes": ["node-0", "node-1"]}
    event = Event(t=float(generation), kind="round", node="master", generation=generation, data=data)
    return event.to_json("train") + "\n"


def test_the_steps_of_ranks_that_were_killed_are_read_from_their_pages(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / ".composesim" / "runs" / "train")
    folder.claim()
    folder.clear(-1, -1)
    folder.write_plan(a_plan(nodes=2))
    for generation, steps in enumerate((7, 12)):
        page = ProgressPage(folder.path, "node-0", 0, generation)
        for _ in range(steps):
            page.advance("steps")
    (folder.path / "events" / "master.jsonl").write_text(begun(0) + begun(1))
    (folder.path / "observations" / "node-1.1.0.progress").write_bytes(b"torn")
    for name in ("node-1.0.1", "node-1.1.9"):  # node-1 claims a rank of another node, and a round that nobody began
        shutil.copy(
            folder.path / "observations" / "node-0.0.1.progress", folder.path / "observations" / f"{name}.progress"
        )

    _, state = read_state(folder)
    folder.release()

    assert {name: node.steps for name, node in state.nodes.items()} == {"node-0": 19, "node-1": 0}
