"""A rank stops at `breakpoint()` until a terminal is attached to its socket."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable

from compose_sim.node.rank.debugging.debugger import _SocketFile
from tests.builders import PATIENCE_S
from tests.node.harness import NODE_CODE, Cluster

MakeCluster = Callable[..., Cluster]
SCRIPT = """
import os
secret = 41
breakpoint()
secret += 1
print("secret", secret)
breakpoint()
print("ended")
"""


def attach(run: Cluster, name: str) -> socket.socket:
    descriptor = os.open(run.folder / "debug", os.O_RDONLY)
    link = socket.socket(socket.AF_UNIX)
    link.settimeout(PATIENCE_S)
    # It is announced before it listens.
    run.wait_for(lambda: link.connect_ex(f"/proc/self/fd/{descriptor}/{name}") == 0)
    os.close(descriptor)
    link.sendall(b"pdb\n")
    return link


def until(link: socket.socket, text: str) -> str:
    seen = ""
    while text not in seen:
        data = link.recv(4096)
        assert data, seen
        seen += data.decode()
    return seen


def test_a_breakpoint_waits_for_a_terminal(cluster: MakeCluster) -> None:
    run = cluster(SCRIPT, launcher="env").start(1)
    place = run.wait_for_event("node-0", "breakpoint", phase="waiting")["data"]
    assert (place["file"], place["line"]) == (run.program[0], 4)
    path = run.folder / "debug" / place["socket"]
    # Nobody has connected, so it stays.
    run.wait_for(lambda: path.exists() and stat.S_IMODE(path.stat().st_mode) == 0o600)
    with attach(run, place["socket"]) as link:
        assert "secret += 1" in until(link, "(Pdb) ")
        link.sendall(b"w\n")
        assert str(NODE_CODE.name + "/rank") not in until(link, "(Pdb) ")
        link.sendall(b"secret = 99\np secret\n")
        assert "99" in until(link, "99")
        link.sendall(b"continue\n")
        until(link, "ended")  # the line where the second breakpoint stops
        link.sendall(b"c\n")
    assert set(run.exit_codes().values()) == {0}
    assert "secret 100" in run.log(0)
    assert " --rank 0" in run.log(0)


def test_a_script_continues_when_the_terminal_disconnects(cluster: MakeCluster) -> None:
    run = cluster(SCRIPT, launcher="env").start(1)
    first = run.wait_for_event("node-0", "breakpoint", phase="waiting")["data"]["socket"]
    attach(run, first).close()
    run.wait_for(lambda: len(run.events("node-0", "breakpoint")) >= 4)
    with attach(run, first) as link:
        until(link, "(Pdb) ")
    assert set(run.exit_codes().values()) == {0}
    assert "ended" in run.log(0)


def test_pythonbreakpoint_is_respected(cluster: MakeCluster) -> None:
    run = cluster("import os\nos.environ['PYTHONBREAKPOINT'] = '0'\n" + SCRIPT, launcher="env").start(1)
    assert set(run.exit_codes().values()) == {0}


def test_an_unfinished_line_is_sent_only_as_a_prompt() -> None:
    """Pdb writes a line and its newline one after the other; the terminal takes what has no newline for a prompt."""
    terminal, (ours, theirs) = _SocketFile(), socket.socketpair()
    terminal._link = ours
    with ours, theirs:
        print("-> breakpoint()", end="", file=terminal)
        ours.sendall(b"|")
        print("", file=terminal)
        print("(Pdb) ", end="", file=terminal)
        ours.sendall(b"|")
        terminal.flush()
        assert theirs.recv(4096) == b"|-> breakpoint()\n|(Pdb) "

        print("x", end="", file=terminal)
        terminal.end_line()  # `continue`: no prompt follows
        terminal.end_line()
        assert theirs.recv(4096) == b"x\n"
