"""In a run of several rounds, checks get the last one, wherever the ranks ran before."""

from __future__ import annotations

import json
from pathlib import Path

from compose_sim.engine.run_folder.record import read_events, read_logs, read_observed
from compose_sim.node.rank.observations import encode
from compose_sim.node.records.script import LaunchEnvironment


def tell_round(folder: Path, node: str, generation: int, logs: dict[str, int]) -> None:
    event = {"v": 1, "t": 1.0 + generation, "node": node, "rank": None, "generation": generation, "kind": "rendezvous"}
    with (folder / "events" / f"{node}.jsonl").open("a") as file:
        file.write(json.dumps({**event, "data": {"world_size": len(logs), "logs": logs}}) + "\n")


def test_checks_see_the_last_round_alone(tmp_path: Path) -> None:
    """Node-0 was lost and rank 0 moved to node-1, then back: what node-1 printed as rank 0 belongs to an earlier round."""
    for name in ("events", "logs", "observations"):
        (tmp_path / name).mkdir()
    for node, rank, generation in (("node-0", 0, 0), ("node-1", 1, 0), ("node-1", 0, 1), ("node-0", 0, 2)):
        text = encode(LaunchEnvironment(local_rank=0), 1.0) + "\n"
        (tmp_path / "observations" / f"{node}.{rank}.{generation}.jsonl").write_text(text)
    (tmp_path / "logs" / "node-0.0.log").write_text("first round\nlast round\n")
    (tmp_path / "logs" / "node-1.0.log").write_text("second round\n")
    (tmp_path / "logs" / "node-1.1.log").write_text("first round, rank 1\n")
    tell_round(tmp_path, "node-0", 0, {"0": 0})
    tell_round(tmp_path, "node-1", 0, {"1": 0})
    tell_round(tmp_path, "node-1", 1, {"0": 0})
    tell_round(tmp_path, "node-0", 2, {"0": len("first round\n")})

    assert read_logs(tmp_path, read_events(tmp_path)) == {0: ("last round",)}
    assert {rank.rank: rank.node for rank in read_observed(tmp_path)} == {0: "node-0"}


def test_logs_of_which_no_round_is_told_are_read_whole(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "node-0.0.log").write_text("one\ntwo\n")

    assert read_logs(tmp_path, read_events(tmp_path)) == {0: ("one", "two")}
