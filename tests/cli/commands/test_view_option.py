"""`--view`: the page is served beside the run, to who has the address, and held afterwards where Ctrl-C can be typed."""

from __future__ import annotations

import os
import pty
import re
import secrets
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from queue import SimpleQueue

import pytest

from tests.builders import PATIENCE_S
from tests.cli.commands.test_cmd_view import Page
from tests.cli.conftest import COMMAND, UP, WAITING, Live, Project

PAGE = re.compile(r"page: (http://127\.0\.0\.1:\d+/#token=\S+)")

SCENARIO = "cluster: {engine: local, nodes: 2}\nexpect:\n  - exit_code: 0\n"


@pytest.fixture
def waiting_ranks(project: Project) -> Live:
    """Two ranks that wait for a number, once something starts them."""
    for rank in (0, 1):
        os.mkfifo(project.folder / f"word.{rank}")
    project.write("train.py", WAITING)
    return Live(project, f"viewed-{secrets.token_hex(3)}")


def first_page(lines: Iterator[str]) -> Page:
    """Return the page whose address is printed first."""
    return Page(next(found[1] for found in map(PAGE.search, lines) if found))


def is_served(page: Page) -> bool:
    """Return whether the page answers who has the token, and nobody else."""
    try:
        return [page.get("/runs", token=token).status for token in (None, "")] == [200, 401]
    except ConnectionError:
        return False


def test_the_page_of_a_run_in_a_pipe_ends_with_the_run(waiting_ranks: Live) -> None:
    process = waiting_ranks.project.start(*UP, "--view", "--name", waiting_ranks.run, "train.py")
    assert process.stderr
    page = first_page(iter(process.stderr.readline, ""))
    assert is_served(page)
    waiting_ranks.tell(0, "0")
    messages = page.messages()
    assert not next(messages)["now"]["is_over"]
    waiting_ranks.tell(1, "0")
    (*_, last) = messages
    _, errors = process.communicate(timeout=PATIENCE_S)

    assert (last["now"]["is_over"], last["now"]["verdict"]) == (True, "passed")
    assert (process.returncode, is_served(page)) == (0, False)
    assert f"composesim view {waiting_ranks.run}" in errors


def test_the_page_of_a_detached_run_outlives_the_command_and_ends_with_the_run(waiting_ranks: Live) -> None:
    project, run = waiting_ranks.project, waiting_ranks.run
    started = project.run(*UP, "--detach", "--view", "--name", run, "train.py")
    try:
        page = first_page(iter(started.stderr.splitlines()))
        messages = page.messages()
        assert not next(messages)["now"]["is_over"]
        assert is_served(page)
        for rank in (0, 1):
            waiting_ranks.tell(rank, "0")
        assert project.run("wait", "--run", run).returncode == 0
    finally:
        project.run("down", "--run", run)
    while is_served(page):  # the process that ran it ends soon after its report is written
        time.sleep(0.05)


def lines_of(terminal: int) -> Iterator[str]:
    """Return the lines of a terminal. A thread reads it all the time: composesim would wait for a reader if it were full."""
    lines: SimpleQueue[str] = SimpleQueue()

    def read() -> None:
        rest = b""
        with suppress(OSError):  # the last process that writes to it has ended
            while data := os.read(terminal, 1 << 16):
                *complete, rest = (rest + data).split(b"\n")
                for line in complete:
                    lines.put(line.decode(errors="replace") + "\n")
        lines.put("")

    threading.Thread(target=read, daemon=True).start()
    return iter(lines.get, "")


@pytest.mark.parametrize("verb", ["up", "check", "play"])
def test_the_page_is_held_on_a_terminal_until_ctrl_c_and_the_exit_code_stays(waiting_ranks: Live, verb: str) -> None:
    waiting_ranks.project.write("two.yaml", SCENARIO)
    words = {
        "up": UP,
        "check": ("check", *UP[1:], "--nodes", "2", "--nproc-per-node", "1"),
        "play": ("play", "two.yaml"),
    }[verb]
    ours, terminal = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, *words[:1], "--view", "--name", waiting_ranks.run, *words[1:], "train.py"],
        cwd=waiting_ranks.project.folder,
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
    )
    os.close(terminal)
    lines = lines_of(ours)
    page = first_page(lines)
    waiting_ranks.tell(0, "0")
    waiting_ranks.tell(1, "3")
    next(line for line in lines if f"{page.place}/#token={page.token}" in line)
    (*_, last) = page.messages()  # served after the end of the run
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE_S) == 1
    os.close(ours)

    assert (last["now"]["is_over"], last["now"]["verdict"], is_served(page)) == (True, "failed", False)
