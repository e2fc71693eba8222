"""Another user of this machine connects to all that listens on 127.0.0.1 for a run (the table in SECURITY.md)."""

from __future__ import annotations

import json
import os
import re
import secrets
import socket
from pathlib import Path

import pytest

from tests.audit.strangers import answer_of, as_stranger, ports_of
from tests.cli.conftest import UP, Project

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def debugger_messages(victim: Path) -> list[bytes]:
    """What an editor sends to stop a program and to execute an expression in it."""
    write = f"open({str(victim)!r}, 'w')"
    requests = [
        ("initialize", {"adapterID": "x", "clientID": "x", "pathFormat": "path"}),
        ("attach", {"justMyCode": False}),
        ("configurationDone", {}),
        ("pause", {"threadId": 1}),
        ("evaluate", {"expression": write, "context": "repl"}),
    ]
    bodies = [
        json.dumps({"seq": number, "type": "request", "command": command, "arguments": arguments}).encode()
        for number, (command, arguments) in enumerate(requests, start=1)
    ]
    return [b"Content-Length: %d\r\n\r\n%s" % (len(body), body) for body in bodies]


@pytest.mark.train
@pytest.mark.parametrize("when", ["before the editor", "beside the editor"])
def test_a_debugger_serves_only_its_own_user(project: Project, when: str) -> None:
    run, victim = f"debug-{secrets.token_hex(3)}", project.folder / "written"
    project.write("train.py", "breakpoint()\nprint('over')\n")
    assert (
        project.run(*UP, "--nodes", "1", "--nproc-per-node", "1", "--detach", "--name", run, "train.py").returncode == 0
    )
    attach = project.start("attach", "--dap", "0", "--run", run)
    assert attach.stderr is not None
    found = None
    while found is None:
        text = attach.stderr.readline()
        assert text
        found = re.search(r"127\.0\.0\.1:(\d+)", text)
    port, messages = int(found[1]), debugger_messages(victim)
    editor = socket.create_connection(("127.0.0.1", port)) if when == "beside the editor" else None
    if editor:
        editor.sendall(messages[0])
        assert editor.recv(1)
    ports = set(ports_of(run))
    assert port in ports or editor, "the listener of `attach`"

    answers = as_stranger(lambda: {each: answer_of(each, *messages).decode("latin-1") for each in ports})

    assert not any("initialized" in answer or "capabilities" in answer for answer in answers.values()), answers
    if editor is None:
        assert answers[str(port)] == ""
        editor = socket.create_connection(("127.0.0.1", port))  # this user may
        editor.sendall(messages[0])
        assert editor.recv(1)
    editor.close()
    attach.communicate()
    assert project.run("wait", "--run", run).returncode == 0
    assert not victim.exists()
