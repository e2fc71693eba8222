"""Verbs that act on a running run from another shell."""

from __future__ import annotations

import json
import os
import pty
import secrets
import subprocess
import sys

import pytest

from tests.builders import PATIENCE_S
from tests.cli.conftest import COMMAND, Live, Project


def test_it_is_listed_with_its_nodes(waiting: Live) -> None:
    runs = {run["run"]: run for run in json.loads(waiting.project.run("ps", "--json").stdout)["runs"]}

    run = runs[waiting.run]
    assert (run["engine"], run["state"], run["folder"]) == ("local", "under way", str(waiting.folder))
    assert [(node["node"], node["state"]) for node in run["nodes"]] == [
        ("master", "running"),
        ("node-0", "running"),
        ("node-1", "running"),
    ]


def test_a_command_runs_inside_a_node_and_its_status_is_ours(waiting: Live) -> None:
    code = "import os, sys; print(os.environ['COMPOSESIM_NODE']); sys.exit(7)"
    done = waiting.project.run("exec", "--run", waiting.run, "1", "--", sys.executable, "-c", code)

    assert (done.returncode, done.stdout) == (7, "node-1\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("node-5", "--", "true"), "there is no node 'node-5' in the run"),
        (("node-1",), "no command was given"),
    ],
)
def test_a_command_that_cannot_run_is_an_error(waiting: Live, words: tuple[str, ...], message: str) -> None:
    done = waiting.project.run("exec", "--run", waiting.run, *words)

    assert done.returncode == 2
    assert message in done.stderr


def test_logs_are_followed_and_waiting_ends_with_the_run(live: Live) -> None:
    logs = live.project.start("logs", "-f", "--run", live.run)
    wait = live.project.start("wait", "--run", live.run)
    assert logs.stdout is not None
    begun = {logs.stdout.readline(), logs.stdout.readline()}
    assert begun == {"node-0 | begun 0\n", "node-1 | begun 1\n"}

    live.tell(0, "0")
    live.tell(1, "3")

    rest = logs.communicate(timeout=PATIENCE_S)[0].splitlines()
    assert "node-0 | told 0" in rest
    assert "node-1 | told 3" in rest
    _, verdict = wait.communicate(timeout=PATIENCE_S)
    assert (wait.returncode, verdict) == (1, "✘ failed  rank 1 exited with status 3 (node-1)\n")


def test_waiting_has_a_time_limit(waiting: Live) -> None:
    done = waiting.project.run("wait", "--run", waiting.run, "--timeout", "100ms")

    assert done.returncode == 124
    assert "still running after 0.10 s" in done.stderr


def test_a_report_of_it_must_wait(waiting: Live) -> None:
    done = waiting.project.run("report", waiting.run)

    assert done.returncode == 2
    assert f"Try: composesim wait --run {waiting.run}" in done.stderr


def test_stats_show_what_nodes_use(live: Live) -> None:
    watch = live.project.start("stats", "--watch", "--run", live.run)
    assert watch.stdout is not None
    for line in watch.stdout:
        if line.startswith("node-1") and "MiB" in line:
            break
    live.tell(0, "0")
    live.tell(1, "0")
    lines = watch.communicate(timeout=PATIENCE_S)[0].splitlines()

    assert lines[-1].split()[:2] == ["node-1", "exited"]


def test_down_interrupts_it_and_leaves_its_report(live: Live) -> None:
    done = live.project.run("down", live.run)
    wait = live.project.run("wait", "--run", live.run)

    assert (done.returncode, done.stderr) == (0, f"removed {live.run} from local\n")
    assert wait.returncode == 130
    assert wait.stderr.startswith("✘ interrupted")
    assert live.run not in live.project.run("ps").stdout


def test_down_with_purge_deletes_the_folder_too(live: Live) -> None:
    done = live.project.run("down", "--run", live.run, "--purge")

    assert done.stderr.splitlines()[-1] == f"deleted {live.folder}"
    assert not live.folder.exists()


def test_prune_removes_what_has_no_composesim_any_more_and_nothing_else(live: Live) -> None:
    crashed = f"crashed-{secrets.token_hex(3)}"
    folder = live.project.folder / ".composesim" / "runs" / crashed
    folder.mkdir(parents=True)
    variables = {"COMPOSESIM_ENGINE": "local", "COMPOSESIM_RUN": crashed, "COMPOSESIM_NODE": "node-0"}
    left = subprocess.Popen(["sleep", "1000"], env={**os.environ, **variables, "COMPOSESIM_DIR": str(folder)})

    done = live.project.run("prune")

    assert left.wait(PATIENCE_S) != 0
    assert f"removed {crashed} from local" in done.stderr.splitlines()
    assert live.run not in done.stderr
    assert live.run in live.project.run("ps").stdout


@pytest.mark.train
def test_a_debugger_is_reached_with_commands_from_a_pipe(project: Project) -> None:
    """Two breakpoints, one pipe: the script continues with the value that was set at the first one."""
    run = f"debug-{secrets.token_hex(3)}"
    script = "import os\nanswer = 41\nif os.environ['RANK'] == '1':\n    breakpoint()\n    breakpoint()\nprint('answer', answer)\n"
    project.write("train.py", script)
    project.run("up", "--engine", "local", "--nodes", "2", "--detach", "--name", run, "train.py")

    done = project.run("attach", "--rank", "1", "--run", run, stdin="p answer\n!answer = 42\nc\np answer + 1\nc\n")

    assert done.returncode == 0
    assert "(Pdb) 41\n" in done.stdout
    assert "(Pdb) 43\n" in done.stdout
    assert f"rank 1 on node-1 is at {project.folder}/train.py:4\n" in done.stderr
    assert project.run("wait", "--run", run).returncode == 0
    assert "node-1 | answer 42" in project.run("logs", "--run", run).stdout


@pytest.mark.train
def test_a_terminal_has_line_editing_and_a_history(project: Project) -> None:
    run = f"debug-{secrets.token_hex(3)}"
    project.write("train.py", "answer = 41\nbreakpoint()\nprint('done')\n")
    project.run("up", "--engine", "local", "--nodes", "1", "--detach", "--name", run, "train.py")
    ours, theirs = pty.openpty()
    words = [*COMMAND, "attach", "--rank", "0", "--run", run]
    environment = {**os.environ, "TERM": "xterm"}
    with subprocess.Popen(
        words, cwd=project.folder, stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    ) as attach:
        os.close(theirs)

        def type_at_prompt(keys: bytes) -> bytes:
            seen = b""
            while not seen.endswith(b"(Pdb) "):
                seen += os.read(ours, 4096)
            os.write(ours, keys)
            return seen

        type_at_prompt(b"p answer\r")
        assert b"\r\n41\r\n" in type_at_prompt(b"\x1b[A\r")  # the up key
        assert b"\r\n41\r\n" in type_at_prompt(b"p answer3\x7f + 1\r")
        assert b"\r\n42\r\n" in type_at_prompt(b"c\r")
        assert attach.wait(PATIENCE_S) == 0
    os.close(ours)
    assert project.run("wait", "--run", run).returncode == 0


def test_attaching_to_a_rank_that_never_stops_ends_with_the_run(live: Live) -> None:
    attach = live.project.start("attach", "--rank", "0", "--run", live.run)
    assert attach.stderr is not None
    assert "waiting for rank 0" in attach.stderr.readline()
    live.tell(0, "0")
    live.tell(1, "0")

    _, error = attach.communicate(timeout=PATIENCE_S)
    assert attach.returncode == 1
    assert "ended before rank 0 reached a breakpoint" in error
