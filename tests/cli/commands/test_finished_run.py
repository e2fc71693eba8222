"""Everything about a finished run can be read from the run folder, without querying an engine."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import DONE, Project, run_finished
from tests.report_schema import validate_report

SCRIPT = """
import json, os, sys
rank = int(os.environ["RANK"])
for step in (1, 2, 3):
    print(f"rank {rank} line {step}", flush=True)
if rank == 0:
    print(json.dumps({"step": 3, "epoch": 1, "loss": 0.25, "accuracy": 0.975}), flush=True)
print("no newline", end="", flush=True)
"""
FAILING = """
import os
if os.environ["RANK"] == "2":
    raise ValueError("boom")
open("never").read()
"""


@pytest.fixture(scope="module")
def passed(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Return a run of two nodes with two ranks each."""
    return run_finished(tmp_path_factory.mktemp("passed"), SCRIPT, "--nodes", "2", "--nproc-per-node", "2")


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Rank 2 raises; the others wait for it in vain."""
    folder = tmp_path_factory.mktemp("failed")
    import os

    os.mkfifo(folder / "never")
    return run_finished(folder, FAILING, "--nodes", "3")


def test_logs_are_complete_with_the_rank_where_a_node_has_several(passed: Project) -> None:
    lines = passed.run("logs", "--run", DONE).stdout.splitlines()

    assert [line for line in lines if line.startswith("node-1.3 | ")] == [
        *(f"node-1.3 | rank 3 line {step}" for step in (1, 2, 3)),
        "node-1.3 | no newline",
    ]
    assert len(lines) == 4 * 4 + 1


@pytest.mark.parametrize(
    ("words", "ranks"),
    [
        (("--node", "1"), {2, 3}),
        (("--node", "node-0"), {0, 1}),
        (("--rank", "3"), {3}),
        (("--rank", "0", "--rank", "2"), {0, 2}),
    ],
)
def test_logs_of_some_nodes_and_ranks(passed: Project, words: tuple[str, ...], ranks: set[int]) -> None:
    lines = passed.run("logs", "--run", DONE, "--json", *words).stdout.splitlines()

    assert {json.loads(line)["rank"] for line in lines} == ranks


def test_logs_show_what_a_rank_printed_on_another_node(tmp_path: Path) -> None:
    """In an elastic run, a rank may be on another node in each round."""
    project = run_finished(tmp_path, "", "--nodes", "2", "--elastic", "1:2")
    (tmp_path / ".composesim" / "runs" / DONE / "logs" / "node-1.0.log").write_text("moved\n")
    for words in ((), ("--rank", "0"), ("--node", "1")):
        assert "node-1 | moved" in project.run("logs", "--run", DONE, *words).stdout
    assert "moved" not in project.run("logs", "--run", DONE, "--node", "0").stdout


def test_logs_begin_with_the_last_lines_of_each_rank(passed: Project) -> None:
    lines = passed.run("logs", "--run", DONE, "--tail", "1", "--follow").stdout.splitlines()

    assert sorted(lines) == [f"node-{rank // 2}.{rank} | no newline" for rank in range(4)]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--node", "7"), "there is no node '7' in the run '{run}': it has node-0, node-1"),
        (("--rank", "4"), "there is no rank '4' in the run '{run}': there are ranks 0, 1, 2, 3"),
        (("--rank", "x"), "there is no rank 'x' in the run '{run}': there are ranks 0, 1, 2, 3"),
        (("--node", "0", "--rank", "2"), "there is no rank '2' on node-0: there are ranks 0, 1"),
        (("--run", "other"), "there is no run 'other' in"),
    ],
)
def test_what_does_not_exist_is_named(passed: Project, words: tuple[str, ...], message: str) -> None:
    done = passed.run("logs", "--run", DONE, *words)

    assert done.returncode == 2
    assert message.format(run=DONE) in done.stderr
    assert "Try: composesim ps" in done.stderr


def test_a_report_shows_nodes_timings_metrics_and_the_verdict_last(passed: Project) -> None:
    lines = passed.run("report", DONE).stdout.rstrip().splitlines()

    nodes = [line.split()[:4] for line in lines if line.startswith("node-")]
    assert nodes == [["node-0", "0-1", "0", "0"], ["node-1", "2-3", "0", "0"]]
    assert any(line.startswith("timings") and "rendezvous" in line for line in lines)
    assert "metrics  loss 0.25 · accuracy 0.975 · epoch 1 · step 3" in lines
    assert lines[-1].startswith("✔ passed  2 nodes, 4 ranks of train.py in ")


def test_a_report_names_the_first_failure_with_its_traceback(failed: Project) -> None:
    text = failed.run("report", "--run", DONE).stdout

    assert '  File "' in text
    assert text.rstrip().splitlines()[-1] == "✘ failed  rank 2 on node-2: ValueError: boom (train.py, line 4)"


def test_a_report_is_made_from_events_where_a_crash_left_none(failed: Project, tmp_path: Path) -> None:
    runs = failed.folder / ".composesim" / "runs"
    copy = tmp_path / ".composesim" / "runs" / "copy"
    shutil.copytree(runs / DONE, copy)
    (copy / "report.json").unlink()

    kept = json.loads(failed.run("report", DONE, "--json").stdout)
    made = json.loads(failed.run("report", str(copy), "--json").stdout)

    assert made == kept
    assert (made["verdict"], made["exit_code"]) == ("failed", 1)
    validate_report(made)


def test_a_report_from_a_crash_in_midst_of_a_run_is_inconclusive(passed: Project, tmp_path: Path) -> None:
    project = Project(tmp_path)
    copy = tmp_path / ".composesim" / "runs" / "killed"
    shutil.copytree(passed.folder / ".composesim" / "runs" / DONE, copy)
    (copy / "report.json").unlink()
    for path in (copy / "journal" / "composesim.jsonl", copy / "events" / "node-1.jsonl"):
        before = [line for line in path.read_text().splitlines() if "exited" not in line and "node-stopped" not in line]
        path.write_text("\n".join(before) + '\n{"torn": ')

    done = project.run("wait", "--run", "killed", "--json")

    report = json.loads(done.stdout)
    assert (done.returncode, report["verdict"]) == (3, "inconclusive")
    validate_report(report)
    assert "node-1" in report["cause"]["message"]


def test_wait_ends_with_the_exit_code_of_the_run(passed: Project, failed: Project) -> None:
    assert passed.run("wait", "--run", DONE).returncode == 0
    done = failed.run("wait", "--run", DONE)

    assert done.returncode == 1
    assert done.stderr == "✘ failed  rank 2 on node-2: ValueError: boom (train.py, line 4)\n"


def test_stats_at_the_end(passed: Project) -> None:
    stats = json.loads(passed.run("stats", "--run", DONE, "--json").stdout)
    table = passed.run("stats", "--run", DONE).stdout.splitlines()

    assert [node["node"] for node in stats["nodes"]] == ["node-0", "node-1"]
    assert all(node["state"] == "exited" and node["cpus"] is None for node in stats["nodes"])
    assert all(node["cpu_seconds"] >= 0 and node["peak_memory_bytes"] > 0 for node in stats["nodes"])
    assert [line.split()[0] for line in table] == ["node", "node-0", "node-1"]


def test_ps_all_has_the_verdict(passed: Project, failed: Project) -> None:
    runs = {run["run"]: run["state"] for run in json.loads(passed.run("ps", "--all", "--json").stdout)["runs"]}
    assert runs[DONE] == "passed"

    assert "failed" in failed.run("ps", "--all").stdout


def test_down_leaves_the_folder_and_purge_does_not(tmp_path: Path) -> None:
    project = run_finished(tmp_path, SCRIPT)
    folder = tmp_path / ".composesim" / "runs" / DONE

    kept = project.run("down", "--run", DONE)
    assert (kept.returncode, kept.stderr) == (0, f"{DONE} is already over; its folder is {folder}\n")
    purged = project.run("down", "--run", DONE, "--purge")
    assert (purged.returncode, purged.stderr) == (0, f"deleted {folder}\n")
    assert not folder.exists()
    assert project.run("down", "--run", DONE).returncode == 2
