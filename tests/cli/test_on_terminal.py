"""On a terminal, a failure is told once, and no line of ours is broken in the middle of a word."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios

import pytest

from tests.cli.conftest import COMMAND, UP, Project

FAILING = """import os
def step(batch):
    return batch["labels that this batch does not have, although the collate function promised them to the loop"]
if os.environ["RANK"] == "1":
    step({})
"""
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[()][AB0]")


def screen(project: Project, columns: int, *words: str) -> tuple[int, list[str]]:
    """Run the command on a terminal of this width; return its exit code and the lines that it printed."""
    mine, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 200, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR", "CI")}
    run = subprocess.Popen(
        [*COMMAND, *words],
        cwd=project.folder,
        env={**environment, "TERM": "xterm"},
        stdin=its,
        stdout=its,
        stderr=its,
        start_new_session=True,
    )
    os.close(its)
    printed = b""
    while True:
        try:
            part = os.read(mine, 65536)
        except OSError:  # the last process on the terminal has closed it
            break
        printed += part
    os.close(mine)
    text = _CONTROL.sub("", printed.decode())
    return run.wait(), [line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n")]


@pytest.mark.parametrize("columns", [80, 120])
def test_a_failure_is_told_once_and_wrapped_at_words(project: Project, columns: int) -> None:
    script = project.write("train.py", FAILING)
    status, lines = screen(project, columns, *UP, "--nodes", "2", script)
    verdict = "\n".join(lines).rpartition("✘ failed")[2]

    assert status == 1
    assert sum("Traceback" in line for line in lines) == 1
    assert "(train.py, line 3)" in " ".join(verdict.split())
    ours = [line for line in lines if " | " not in line]  # the output of ranks is theirs
    assert [line for line in ours if len(line) > columns and " " in line.strip()] == []
    words = {word for line in ours for word in line.split()}
    assert {"although", "function", "promised"} <= words


def test_help_and_plan_fit_into_80_columns(project: Project) -> None:
    script = project.write("train.py", "print(1)\n")
    status, lines = screen(project, 80, "plan", "--engine", "local", script)

    assert status == 0
    assert [line for line in lines if len(line) > 80 and " " in line.strip()] == []


def test_the_page_of_a_check_is_laid_out(project: Project) -> None:
    status, lines = screen(project, 80, "check", "--explain", "set-epoch")

    assert status == 0
    assert lines[0].strip() == "set-epoch"
    assert "How to fix it" in map(str.strip, lines)
    assert [line for line in lines if len(line) > 80 or "**" in line or "##" in line] == []
