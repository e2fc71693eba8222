"""Check that a run continues from the last whole checkpoint if it is killed, or the disk is full, while one is written."""

from __future__ import annotations

from bench.soak.setting import Row, Soak

TRIES = 5
# Step 60 is printed just before the checkpoint is written, which takes a second.
KILL = """
cluster: {nodes: 2, elastic: "1:2"}
steps:
- at: {rank: 0, step: 60}
  fault: {kind: kill, node: node-0, for: 1s}
expect:
- steps_lost_at_most: 25
- exit_code: 0
- nothing_left: true
"""


def measure(soak: Soak) -> Row:
    """Measure each case several times; a run must repeat at most the steps since the previous checkpoint."""
    killed, notes = 0, []
    for _ in range(TRIES):
        report = soak.play(soak.new_name(), KILL, "slow_checkpoint.py")
        killed += _passed(report, notes)
    full = 0
    for _ in range(TRIES if soak.engine == "docker" else 0):
        full += _passed(soak.play(soak.new_name(), "full-disk-at-checkpoint"), notes)
    tried = TRIES if soak.engine == "docker" else 0
    return Row(
        what="checkpoint: kill during the write, disk full during the write",
        wanted="the run resumes from the last whole one",
        seen=f"killed {killed} of {TRIES}, disk full {full} of {tried}",
        reached=killed == TRIES and full == tried > 0,
        notes=notes,
    )


def _passed(report: dict[str, object], notes: list[str]) -> bool:
    if report.get("verdict") == "passed":
        return True
    notes.append(f"{report.get('verdict')}: {report.get('cause') or report.get('error')}")
    return False
