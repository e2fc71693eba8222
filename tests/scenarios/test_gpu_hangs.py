"""Hangs with NCCL are named as those without: a rank spins while it waits for its GPU. `scripts/gpu_test.sh` runs these."""

from __future__ import annotations

import pytest

from tests.builders import ROOT
from tests.scenarios.conftest import Project

pytestmark = pytest.mark.gpu

SCRIPT = (ROOT / "tests" / "node" / "emulated" / "hangs.py").read_text()
TWO_NODES = ("--engine", "local", "--nodes", "2", "--nproc-per-node", "1", "--timeout", "3m", "--json")

# What the message of the cause begins with, and a part of the rest; `{…}` is the line with that comment.
HANGS = {
    "sleeps": ("rank 1 on node-1 sleeps at train.py, line {sleeps}", "rank 0 waits for it in "),
    "differs": ("rank 0 issued all_reduce #19 of [[4]] (train.py, line {differs})", "but rank 1 broadcast #19"),
    "sends": ("rank 0 waits in send (train.py, line {sends}), while rank 1 waits in all_reduce #19", ""),
    "adds": ("rank 0 issued all_reduce #11 of [[4]] (train.py, line {adds}), but rank 1 all_reduce #11", ""),
    "misses": ("rank 0 issued barrier #19 (train.py, line {misses}), but rank 1 all_reduce #19", ""),
    "crosses": ("rank 0 waits in all_reduce #", "of group 1: they wait for each other"),
    "loads": ("rank 1 on node-1 waits for its data loader", "sleeps at train.py, line {loads}"),
    "stops": ("rank 1 on node-1 is stopped (SIGSTOP)", "rank 0 waits for it in "),
    "holds": ("rank 1 on node-1 is in C code that holds the GIL", "rank 0 waits for it in "),
    "destroys": (
        "rank 0 on node-0 exited with status 0",
        "rank 1 waits for it in all_reduce #26 (train.py, line {destroys})",
    ),
    "stays": ("no rank makes progress: rank 1 on node-1 has reached the end of its script and waits for a thread", ""),
}


@pytest.mark.parametrize("kind", HANGS)
def test_a_hang_is_named_and_ends_the_run(project: Project, kind: str) -> None:
    script = project.write("train.py", SCRIPT)
    outcome = project.run("up", *TWO_NODES, "--hang-timeout", "16s", script, kind)
    begins, contains = (_with_lines(text) for text in HANGS[kind])

    assert (outcome.status, outcome.report["verdict"]) == (124, "hung"), outcome.stderr
    message = outcome.report["cause"]["message"]
    print(f"{kind}: {message}")
    assert message.startswith(begins)
    assert contains in message
    assert min(node["steps"] for node in outcome.report["nodes"]) >= (6 if kind == "adds" else 12)


def test_a_rank_that_leaves_the_others_is_the_cause(project: Project) -> None:
    """NCCL notices that the connection is closed, and torch ends the rank that waits."""
    script = project.write("train.py", SCRIPT)
    outcome = project.run("up", *TWO_NODES, script, "leaves")

    assert (outcome.status, outcome.report["verdict"]) == (1, "failed"), outcome.stderr
    assert outcome.report["cause"]["message"] == "rank 1 exited with status 0 while other ranks still needed it"


@pytest.mark.parametrize("kind", ["computes", "queues", "evaluates"])
def test_a_rank_whose_gpu_computes_for_long_does_not_hang(project: Project, kind: str) -> None:
    script = project.write("train.py", SCRIPT)
    outcome = project.run("up", *TWO_NODES, script, kind)

    assert (outcome.status, outcome.report["cause"]) == (0, None), outcome.stderr
    assert "hang:" not in outcome.stderr


def _with_lines(text: str) -> str:
    lines = {line.rpartition("# ")[2]: number for number, line in enumerate(SCRIPT.splitlines(), 1) if "# " in line}
    return text.format_map(lines)
